"""How far a canary is: its stages, and what ends it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

from policy.sequential import GuardrailSettings
from schemas.errors import InvalidConfiguration, InvalidInput
from schemas.records import Control, WorkflowClass

CANARY = "canary"
"""A command of the topic `control`: every worker of the pool obeys it, and one controller writes it."""
REQUEST = "canary.request"
"""A command for that controller: `start` with a version, or `stop`."""
MOST_EVENTS = 20


class Phase(StrEnum):
    """What became of a canary."""

    RUNNING = "running"
    BACK = "driven back"  # by a guard, or by a worker that refused it
    STOPPED = "stopped"  # by an operator
    PROMOTED = "promoted"  # it is the stable model now


@dataclass(frozen=True, kw_only=True)
class CanarySettings:
    """The stages of a canary, and who takes part."""

    shares: tuple[float, ...] = (0.01, 0.1, 0.3, 1.0)
    """Of the eligible workflows, stage by stage."""
    hold_s: float = 72 * 3600.0
    """How long each stage lasts."""
    least_decisions: int = 100
    """A stage ends no sooner than the canary has decided so often in it."""
    classes: tuple[WorkflowClass, ...] = tuple(WorkflowClass)
    """Eligible workflows are of one of these classes; those with a critical task never are."""
    look_s: float = 2.0
    """Seconds between two looks at the topics."""
    save_s: float = 10.0
    """Seconds between two records of what the guards have seen."""
    away_s: float = 60.0
    """When nobody watched for so long, the stage begins anew."""
    guardrails: GuardrailSettings = field(default_factory=GuardrailSettings)

    def __post_init__(self) -> None:
        is_growing = all(a < b for a, b in zip((0.0, *self.shares), self.shares, strict=False))
        if not self.shares or not is_growing or self.shares[-1] > 1:
            raise InvalidConfiguration("canary.shares", f"{list(self.shares)}", "give growing shares, above 0 up to 1")
        for name, least in (("hold_s", 0), ("least_decisions", 0), ("look_s", 0.01), ("save_s", 0), ("away_s", 1)):
            if not least <= getattr(self, name) < float("inf"):
                raise InvalidConfiguration(
                    f"canary.{name}", f"{getattr(self, name)} is out of range", f"give {least} or more"
                )
        if not self.classes:
            raise InvalidConfiguration("canary.classes", "is empty", "name the classes that may take part")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a canary is. Times are the controller's, Unix milliseconds."""

    version: str
    phase: Phase
    stage: int
    share: float
    """Of the eligible workflows, now; 0 when it has ended."""
    classes: frozenset[WorkflowClass]
    began_ms: int
    since_ms: int
    """When the stage began, or began anew."""
    who: str
    why: str
    cause: str = ""
    """Why it ended."""
    decisions: int = 0
    """That it has made in this stage."""
    events: tuple[tuple[int, str], ...] = ()
    """When what happened, the newest last."""

    @property
    def is_running(self) -> bool:
        """Whether it decides for a share of the work."""
        return self.phase == Phase.RUNNING

    @classmethod
    def of(cls, record: Control) -> Progress:
        """What the record says. Raises InvalidInput."""
        try:
            plain = json.loads(record.arguments["progress"])
            known = {name: plain[name] for name in (f.name for f in fields(cls)) if name in plain}
            return cls(
                **{
                    **known,
                    "phase": Phase(plain["phase"]),
                    "classes": frozenset(map(WorkflowClass, plain["classes"])),
                    "events": tuple((int(at), str(what)) for at, what in plain.get("events", ())),
                }
            )
        except (LookupError, TypeError, ValueError) as error:
            raise InvalidInput(f"control: {CANARY}", f"is no progress of a canary ({error!r})") from error

    def record(self, pool: str, at_ms: int, kept: Mapping[str, str]) -> Control:
        """The record of it; `kept`: what else its controller wants to find again."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["classes"] = sorted(self.classes)
        return Control(pool, at_ms, CANARY, {**kept, "progress": json.dumps(plain)})


def begun(settings: CanarySettings, version: str, now_ms: int, who: str, why: str) -> Progress:
    """A canary at its first stage."""
    share = settings.shares[0]
    events = ((now_ms, f"started at {100 * share:g} % by {who}"),)
    classes = frozenset(settings.classes)
    return Progress(version, Phase.RUNNING, 0, share, classes, now_ms, now_ms, who, why, events=events)


def ended(progress: Progress, phase: Phase, now_ms: int, cause: str) -> Progress:
    """It decides nothing any more."""
    return _noted(replace(progress, phase=phase, share=0.0, cause=cause), now_ms, f"{phase}: {cause}")


def held_again(progress: Progress, now_ms: int, what: str) -> Progress:
    """Something odd happened: the stage begins anew."""
    return _noted(replace(progress, since_ms=now_ms, decisions=0), now_ms, f"the stage begins anew: {what}")


def advanced(progress: Progress, settings: CanarySettings, now_ms: int) -> Progress:
    """The next stage, or the end as the stable model, when this one has lasted long enough."""
    is_due = now_ms - progress.since_ms >= 1000 * settings.hold_s and progress.decisions >= settings.least_decisions
    if not progress.is_running or not is_due:
        return progress
    stage = progress.stage + 1
    if stage >= len(settings.shares):
        return ended(progress, Phase.PROMOTED, now_ms, f"every stage lasted {settings.hold_s:g} s without a violation")
    share = settings.shares[stage]
    grown = replace(progress, stage=stage, share=share, since_ms=now_ms, decisions=0)
    return _noted(grown, now_ms, f"grew to {100 * share:g} %")


def _noted(progress: Progress, now_ms: int, what: str) -> Progress:
    return replace(progress, events=(*progress.events, (now_ms, what))[-MOST_EVENTS:])
