"""Random damage to documents, for tests that a reader refuses what it cannot use, and never breaks."""

from __future__ import annotations

import copy

from hypothesis import strategies as st

from schemas.errors import InvalidInput


def outcome(read):
    """What the call returns, or the InvalidInput that it raises; nothing else is caught."""
    try:
        return read()
    except InvalidInput as error:
        return error


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["", "a", "b", "-1", "1h", "4Gi", "500m", "nan", "1e999", "9" * 400, "\x00", "\ud800"]),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=3),
    st.dictionaries(st.one_of(st.text(max_size=3), st.integers(), st.none()), st.integers(), max_size=3),
)


@st.composite
def damaged(draw, document):
    """The document with one to four values replaced, removed, added or moved elsewhere."""
    damaged_document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 4))):
        containers = _containers(damaged_document)
        if not containers:
            break
        container = draw(st.sampled_from(containers))
        value = draw(st.one_of(JUNK, st.sampled_from(containers).map(copy.deepcopy)))
        if isinstance(container, list):
            container.insert(draw(st.integers(0, len(container))), value)
        elif draw(st.booleans()):
            container[draw(st.one_of(st.text(max_size=4), st.sampled_from(sorted(container, key=str) or ["a"])))] = (
                value
            )
        elif container:
            del container[draw(st.sampled_from(sorted(container, key=str)))]
    return damaged_document


@st.composite
def damaged_text(draw, text):
    """The text with one to four stretches removed, doubled or overwritten."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        middle = draw(
            st.one_of(
                st.just(""), st.just(text[start:end] * 2), st.text(max_size=4), st.text("{}[]:-,&*!\n \"'#", max_size=4)
            )
        )
        text = text[:start] + middle + text[end:]
    return text


def _containers(value):
    """Every mapping and list in the document."""
    if isinstance(value, dict):
        return [value, *(found for child in value.values() for found in _containers(child))]
    if isinstance(value, list):
        return [value, *(found for child in value for found in _containers(child))]
    return []
