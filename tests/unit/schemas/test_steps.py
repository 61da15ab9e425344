"""What a worker notes of how it folded its inputs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import InvalidRecord
from schemas.records import WorkflowClass
from schemas.steps import FOLD_ORDER, Encoded, Restored, Took, Uses, read, written
from schemas.topics import STATE_INPUTS

OFFSET = st.integers(0, 2**40)
VERSION = st.text("0123456789abcdef", max_size=12)
SHARE = st.integers(0, 10_000).map(lambda parts: parts / 10_000)
CLASSES = st.frozensets(st.sampled_from(WorkflowClass))
STEP = st.one_of(
    st.builds(Took, st.sampled_from(STATE_INPUTS), OFFSET),
    st.builds(Encoded, st.integers(0, 1000)),
    st.builds(Uses, st.integers(0, 1000), VERSION, VERSION, SHARE, CLASSES, st.booleans()),
    st.builds(Restored, st.integers(-1, 2**41), st.tuples(*[st.tuples(OFFSET, OFFSET)] * len(FOLD_ORDER))),
)


@given(st.lists(STEP, max_size=20))
def test_what_was_written_is_read(steps):
    assert list(read(written(steps))) == steps


@pytest.mark.parametrize("numbers", [(0,), (9, 1), (-1, 1), (99, 0), (25, 3)])
def test_a_step_of_an_unknown_kind_is_refused(numbers):
    with pytest.raises(InvalidRecord, match="upgrade headrace"):
        list(read(numbers))
