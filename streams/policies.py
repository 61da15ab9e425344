"""The policy that a worker runs, and what decides when it cannot."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from policy.canary import Canary
from policy.heuristics import heuristic
from policy.observation import Observation, Policy
from schemas.errors import HeadraceError, InvalidConfiguration
from streams import metrics
from streams.second_look import OnlineLookaheadSettings, looking_twice

if TYPE_CHECKING:
    from policy.actor import Actor

log = logging.getLogger("headrace.policy")

SLOW_IN_A_ROW = 5
REST_S = 60.0


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """Who decides, and how."""

    name: str = "actor"
    """`actor`, or the name of a heuristic."""
    fallback: str = "srcp"
    """The heuristic that decides while the actor cannot."""
    temperature: float = 0.3
    """Softmax temperature of the actor's scores; 0 takes the best node."""
    weights: Path | None = None
    """A folder with exported weights; none: those that headrace ships."""
    device: str = "auto"
    """`auto`, `cuda` or `cpu`."""
    deadline_ms: float = 250.0
    """After five batches in a row that took longer than this, the fallback decides for a minute."""
    headroom_mib: float = 256.0
    """Memory that must stay free beside new weights; else they wait."""
    node_filter_rules: list[str] = field(default_factory=list)
    """Jinja2 expressions over `node` and `task`; a node takes a task only where all of them hold."""
    lookahead: OnlineLookaheadSettings = field(default_factory=OnlineLookaheadSettings)
    """Other nodes are tried by simulation before one is taken."""

    def __post_init__(self) -> None:
        if self.name != "actor":
            heuristic(self.name, "policy.name", ("actor",))
        heuristic(self.fallback, "policy.fallback")
        if not 0 <= self.temperature <= 100:
            raise InvalidConfiguration("policy.temperature", f"{self.temperature} is out of range", "give 0 to 100")
        if not self.deadline_ms > 0:
            raise InvalidConfiguration("policy.deadline_ms", f"{self.deadline_ms} is not positive", "give a time")
        if not self.headroom_mib >= 0:
            raise InvalidConfiguration("policy.headroom_mib", f"{self.headroom_mib} is negative", "give 0 or more")
        if self.device not in ("auto", "cuda", "cpu"):
            raise InvalidConfiguration("policy.device", f"'{self.device}'", "give auto, cuda or cpu")
        if self.lookahead.budget_ms >= self.deadline_ms:
            raise InvalidConfiguration(
                "policy.lookahead.budget_ms",
                f"{self.lookahead.budget_ms} leaves nothing of policy.deadline_ms {self.deadline_ms}",
                "give less, or a later deadline",
            )


def build(settings: PolicySettings) -> Policy:
    """The policy of this name. Raises InvalidConfiguration or UnusableWeights."""
    if settings.name != "actor":
        return heuristic(settings.name)
    return looking_ahead(build_actor(settings).policy(), settings)


def build_actor(settings: PolicySettings, *, synchronous: bool = True) -> Actor:
    """The actor; not synchronous: its caller has the nodes of large pools encoded. Raises UnusableWeights."""
    from policy.actor import load_actor  # onnxruntime is only loaded where it decides

    return load_actor(
        settings.weights, device=settings.device, temperature=settings.temperature, synchronous=synchronous
    )


def looking_ahead(policy: Policy, settings: PolicySettings) -> Policy:
    """The policy as it decides under these settings: with a second look where they give it time."""
    return looking_twice(policy, settings.lookahead)


def announce(settings: PolicySettings, actor: Actor | None) -> None:
    """Say who decides, and on what it runs: a silent fall back to the CPU is a defect."""
    if actor is None:
        metrics.ACTOR.info({"policy": settings.name, "version": "", "provider": "none"})
        return
    metrics.ACTOR.info({"policy": "actor", "version": actor.version, "provider": actor.provider})
    level = logging.WARNING if settings.device == "auto" and actor.provider.startswith("CPU") else logging.INFO
    log.log(level, "actor.loaded", extra={"version": actor.version, "provider": actor.provider})


@dataclass(frozen=True)
class Roles:
    """Who decides for a pool: one policy, or beside it a canary for a share of the work."""

    policy: Policy
    actor: Actor | None = None
    canary: Canary | None = None
    canary_actor: Actor | None = None

    @property
    def actors(self) -> tuple[Actor, ...]:
        """Those among them that are actors, each once."""
        return tuple(dict.fromkeys(actor for actor in (self.actor, self.canary_actor) if actor is not None))


OnFailure = Callable[[Policy, str, HeadraceError | ValueError | RuntimeError], None]
"""Told of the policy that failed, and in which pool."""


class Guard:
    """Asks the policy; where it fails, or is slow for long, the fallback. Each version by itself."""

    def __init__(self, fallback: Policy, deadline_ms: float, on_failure: OnFailure = lambda *_: None) -> None:
        self._fallback = fallback
        self._deadline_s = deadline_ms / 1000
        self._on_failure = on_failure
        self._slow = Counter[str]()
        self._rests_until: dict[str, float] = {}

    def __call__(self, policy: Policy, seen: Observation) -> tuple[np.ndarray, Policy]:
        """The scores, and whose they are."""
        if policy.name == self._fallback.name:
            return policy.score(seen), policy
        started, version = time.monotonic(), policy.version
        if started < self._rests_until.get(version, 0.0):
            return self._fall_back(seen, "slow")
        try:
            logits_bn = policy.score(seen)
        except (HeadraceError, ValueError, RuntimeError) as error:
            log.error("actor.failed", extra={"version": version, "error": str(error)})
            self._on_failure(policy, seen.state.pool, error)
            return self._fall_back(seen, "error")
        self._slow[version] = self._slow[version] + 1 if time.monotonic() - started > self._deadline_s else 0
        if self._slow[version] >= SLOW_IN_A_ROW:
            log.error("actor.slow", extra={"version": version, "deadline_s": self._deadline_s, "rests_s": REST_S})
            self._slow[version], self._rests_until[version] = 0, time.monotonic() + REST_S
        return logits_bn, policy

    def _fall_back(self, seen: Observation, reason: str) -> tuple[np.ndarray, Policy]:
        metrics.FALLBACKS.labels(reason).inc()
        return self._fallback.score(seen), self._fallback
