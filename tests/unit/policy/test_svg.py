"""Pictures are well-formed whatever the words in them, and their scales have round steps."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from policy.svg import line, picture, round_step, text


def test_a_picture_holds_its_words_as_they_are():
    drawn = ElementTree.fromstring(picture(200, 100, "a < b", "'c' & d", [text(1, 2, "<e>"), line(0, 0, 5, 5)]))

    assert [element.text for element in drawn if element.text and element.text.strip()] == ["a < b", "'c' & d", "<e>"]
    assert (drawn.get("width"), drawn.get("height")) == ("200", "100")


@pytest.mark.parametrize(("span", "most", "step"), [(100, 12, 10), (90, 12, 10), (1.3, 6, 0.5), (7e4, 12, 1e4)])
def test_a_scale_has_round_steps(span, most, step):
    assert round_step(span, most) == pytest.approx(step)
