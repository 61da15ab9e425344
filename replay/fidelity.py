"""Whether a history's decisions can be made again: every batch, bit by bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from policy.constraints import Constraints
from policy.decide import Batch, DecideSettings, Stamp, decide
from policy.heuristics import HEURISTICS
from policy.observation import Observation, Policy
from replay.cast import Cast
from replay.player import Moment, Player, Range
from schemas.records import DecisionBatch, Placement
from schemas.topics import PLACEMENTS
from streams.policies import Roles


@dataclass(frozen=True, slots=True)
class Difference:
    """A batch that was not made again as it was recorded; what its owner decided after it cannot be compared."""

    offset: int
    """Of the recorded batch in the decisions topic; -1: nothing was recorded where something is decided now."""
    field: str
    recorded: str
    made: str

    def __str__(self) -> str:
        return f"decisions offset {self.offset}: {self.field} was {self.recorded}, is {self.made}"


@dataclass
class Fidelity:
    """What comparing found."""

    batches: int = 0
    """That were made again, and are equal in every field."""
    decisions: int = 0
    """Rows in them."""
    placements: int = 0
    unpublished: int = 0
    """Placements of the last batches of owners that died before Kafka had them, or their evidence, as far as known."""
    skipped: int = 0
    """Batches that could not be compared, since one before them differed."""
    differences: list[Difference] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        """Whether everything was made again as it was."""
        return not self.differences and not self.skipped


class Verifier:
    """Decides again what a player plays, and compares."""

    def __init__(
        self, policy: Policy, constraints: Constraints, settings: DecideSettings, cast: Cast | None = None
    ) -> None:
        """policy  the one that decided; where the evidence names a heuristic instead, that one is asked

        cast  who decided where weights were swapped
        """
        self._cast = cast
        self.found = Fidelity()
        self._policy = policy
        self._constraints = constraints
        self._settings = settings
        self._is_astray = False
        self._untold: Batch | None = None
        """What is decided now beyond what its owner told, while that may be its last."""

    def verify(self, player: Player, wanted: Range) -> Fidelity:
        """Compare all that is wanted. Raises HistoryLost, BrokerError, UnusableWeights."""
        for moment in player.play(wanted):
            if moment.is_first:
                self._owner_ended()
            elif self._untold is not None:  # its owner lived on, and told of other things
                self._differ(-1, "batch", None, self._untold.evidence)
                self._untold = None
            if self._is_astray:
                self.found.skipped += len(moment.made)
            else:
                self._compare(moment)
        self._owner_ended()
        return self.found

    def _owner_ended(self) -> None:
        """What an owner decided last, its death may have kept from Kafka."""
        if self._untold is not None:
            self.found.unpublished += len(self._untold.placements)
        self._untold, self._is_astray = None, False

    def _compare(self, moment: Moment) -> None:
        """One round: what was recorded of it, beside what is decided now."""
        moment.is_folded = True
        recorded = list(zip(moment.made, moment.placements, strict=True))
        at = 0
        for state in moment.partition.pools.values():
            if not state.has_open_questions:
                continue
            stamp = Stamp(moment.partition.epoch, moment.partition.as_of)
            answer = _Recorded([one.batch for one, _ in recorded[at:]])
            roles = self._cast.of(moment.uses.get(state.pool)) if self._cast else Roles(self._policy)
            for batch in decide(state, roles.policy, self._constraints, self._settings, stamp, answer, roles.canary):
                answer.at += 1
                if at == len(recorded):
                    self._untold, self._is_astray = batch, True
                    return
                one, placements = recorded[at]
                at += 1
                if not self._is_equal(one.offset, one.batch, placements, batch):
                    self.found.skipped += len(recorded) - at
                    return
        if at < len(recorded):
            self._differ(recorded[at][0].offset, "batch", recorded[at][0].batch, None)
            self.found.skipped += len(recorded) - at - 1

    def _is_equal(self, offset: int, recorded: DecisionBatch, placements: Sequence[Placement], made: Batch) -> bool:
        evidence = replace(recorded, steps=())
        arrived = {(p.workflow_id, p.task_id, p.attempt) for p in placements}
        theirs = [p for p in made.placements if (p.workflow_id, p.task_id, p.attempt) in arrived]
        unequal = _unequal(evidence, made.evidence) or _unequal_all(placements, theirs)
        if unequal is not None:
            self._differ(offset, *unequal)
            return False
        self.found.batches += 1
        self.found.decisions += len(recorded.workflow_ids)
        self.found.placements += len(placements)
        self.found.unpublished += len(made.placements) - len(placements)
        return True

    def _differ(self, offset: int, name: str, recorded: object, made: object) -> None:
        self._is_astray = True
        self.found.differences.append(Difference(offset, name, _short(recorded), _short(made)))


class _Recorded:
    """Asks whoever the evidence says was asked: the policy, or the heuristic that stood in for it."""

    def __init__(self, batches: Sequence[DecisionBatch]) -> None:
        self._batches = batches
        self.at = 0

    def __call__(self, policy: Policy, seen: Observation) -> tuple[np.ndarray, Policy]:
        if self.at < len(self._batches):
            name = self._batches[self.at].policy
            if name != policy.name and name in HEURISTICS:
                policy = HEURISTICS[name]
        return policy.score(seen), policy


def _unequal(recorded: Any, made: Any) -> tuple[str, object, object] | None:
    """The first field in which two records of one kind differ, bit by bit."""
    for each in fields(recorded):
        was, now = getattr(recorded, each.name), getattr(made, each.name)
        if repr(_plain(was)) != repr(_plain(now)):
            return each.name, was, now
    return None


def _unequal_all(recorded: Sequence[Placement], made: Sequence[Placement]) -> tuple[str, object, object] | None:
    if len(recorded) != len(made):
        return PLACEMENTS.name, len(recorded), len(made)
    return next((found for pair in zip(recorded, made, strict=True) if (found := _unequal(*pair))), None)


def _plain(value: object) -> object:
    """Mappings of equal entries are equal."""
    if isinstance(value, Mapping):
        return sorted(value.items())
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
