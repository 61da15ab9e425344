"""A canary's stages: they grow when they have lasted, begin anew after anything odd, and end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policy.canary_stages import CanarySettings, Phase, Progress, advanced, begun, ended, held_again
from schemas.errors import InvalidConfiguration, InvalidInput
from schemas.records import Control, WorkflowClass

HOUR_MS = 3600_000
SETTINGS = CanarySettings()


def after(progress: Progress, hours: float, decisions: int = 1000) -> Progress:
    """So much later, if so much was decided."""
    at_ms = progress.since_ms + round(hours * HOUR_MS)
    return advanced(replace(progress, decisions=decisions), SETTINGS, at_ms)


def test_it_grows_from_one_to_a_hundred_percent_72_hours_each_and_becomes_the_stable_model() -> None:
    stages = [begun(SETTINGS, "v", 0, "me", "why not")]

    while stages[-1].is_running:
        stages.append(after(stages[-1], 72))

    assert [one.share for one in stages] == [0.01, 0.1, 0.3, 1.0, 0.0]
    assert [one.since_ms / HOUR_MS for one in stages[:4]] == [0, 72, 144, 216]
    assert stages[-1].phase == Phase.PROMOTED


def test_a_stage_does_not_end_before_its_time_nor_without_decisions() -> None:
    first = begun(SETTINGS, "v", 0, "me", "")

    assert after(first, 71.9).stage == 0
    assert after(first, 100, decisions=99).stage == 0
    assert after(first, 100).stage == 1


def test_after_anything_odd_the_stage_begins_anew() -> None:
    second = after(begun(SETTINGS, "v", 0, "me", ""), 72)

    odd = held_again(second, 140 * HOUR_MS, "nobody watched")

    assert (odd.stage, odd.share, odd.decisions) == (1, 0.1, 0)
    assert advanced(replace(odd, decisions=1000), SETTINGS, 150 * HOUR_MS).stage == 1
    assert advanced(replace(odd, decisions=1000), SETTINGS, 212 * HOUR_MS).stage == 2
    assert odd.events[-1] == (140 * HOUR_MS, "the stage begins anew: nobody watched")


def test_what_has_ended_stays_ended_and_decides_nothing() -> None:
    back = ended(begun(SETTINGS, "v", 0, "me", ""), Phase.BACK, 5, "latency: it is late")

    assert (back.share, back.cause) == (0.0, "latency: it is late")
    assert advanced(replace(back, decisions=1000), SETTINGS, 1000 * HOUR_MS) == replace(back, decisions=1000)


def test_a_record_says_all_of_it() -> None:
    settings = CanarySettings(classes=(WorkflowClass.ETL_BATCH, WorkflowClass.MIXED))
    progress = held_again(begun(settings, "v", 7, "me", "it is better"), 9, "a test")

    record = progress.record("pool", 11, {"watch": "kept"})

    assert Progress.of(record) == progress
    assert (record.command, record.arguments["watch"]) == ("canary", "kept")


@pytest.mark.parametrize("arguments", [{}, {"progress": "no JSON"}, {"progress": '{"phase": "flying"}'}])
def test_a_record_of_something_else_is_refused(arguments: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="is no progress of a canary"):
        Progress.of(Control("pool", 0, "canary", arguments))


@pytest.mark.parametrize(
    "wrong", [{"shares": ()}, {"shares": (0.1, 0.1)}, {"shares": (0.5, 1.5)}, {"hold_s": -1}, {"classes": ()}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidConfiguration, match=r"canary\."):
        CanarySettings(**wrong)  # type: ignore[arg-type]
