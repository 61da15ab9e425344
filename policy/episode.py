"""One episode without Kafka: workflows arrive at a simulated cluster, a policy places their tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from policy.breaker import NO_BREAKER
from policy.constraints import Constraints
from policy.decide import Batch, DecideSettings, Stamp, decide
from policy.observation import Policy
from policy.simulator import SimulatedCluster, SimulatorSettings
from policy.state import State, StateSettings
from policy.trace import Trace
from policy.windows import STEP_MS
from schemas.records import NodeSpec, Placement, TaskEvent, TaskReady, WorkflowSubmitted

POOL = "simulated"
LONGEST_MS = 30 * 24 * 3600 * 1000


@dataclass(frozen=True, kw_only=True)
class EpisodeSettings:
    """What an episode is made of besides its nodes and workflows."""

    cluster: SimulatorSettings = field(default_factory=SimulatorSettings)
    state: StateSettings = field(default_factory=StateSettings)
    decide: DecideSettings = field(default_factory=DecideSettings)
    rules: tuple[str, ...] = ()
    start_ms: int = 1_700_000_000_000 // STEP_MS * STEP_MS


OnBatch = Callable[[State, Batch], None]


class Episode:
    """Drives state and cluster on one clock, as the topics do live. After `run`, `trace` holds what happened."""

    def __init__(
        self,
        specs: Sequence[NodeSpec],
        workflows: Sequence[WorkflowSubmitted],
        policy: Policy,
        settings: EpisodeSettings | None = None,
        on_batch: OnBatch | None = None,
    ) -> None:
        self.settings = settings or EpisodeSettings()
        self.policy = policy
        # Without a breaker: an episode shows what the policy does, and nothing that stands in for it.
        self.state = State(POOL, replace(self.settings.state, breaker=NO_BREAKER))
        self.trace = Trace()
        self.decisions = 0
        self._workflows = sorted(workflows, key=lambda w: w.event_time_ms)
        self._cluster = SimulatedCluster(POOL, specs, self.settings.cluster, self.settings.start_ms)
        self._constraints = Constraints(self.settings.rules)
        self._on_batch = on_batch

    @classmethod
    def resumed(
        cls,
        state: State,
        cluster: SimulatedCluster,
        workflows: Sequence[WorkflowSubmitted],
        policy: Policy,
        settings: EpisodeSettings,
    ) -> Episode:
        """An episode that goes on from a state and a cluster that agree; `workflows` are still to come."""
        episode = cls(cluster.specs, workflows, policy, settings)
        episode.state, episode._cluster = state, cluster
        return episode

    def place(self, placements: Iterable[Placement]) -> None:
        """Have the cluster obey placements that others made."""
        for placement in placements:
            self.state.apply(placement)
            self.trace.apply(placement)
            self._take(self._cluster.place(placement))

    def run(self) -> Trace:
        """Play until every workflow is over, or nothing can happen any more."""
        arrivals = list(reversed(self._workflows))
        tick_ms = max(self.settings.start_ms, self._cluster.now_ms)
        while True:
            happening = self._cluster.next_ms
            times = [t for t in (happening, arrivals[-1].event_time_ms if arrivals else None) if t is not None]
            if (not times and not self.state.queue) or (not arrivals and not self.state.workflows):
                return self.trace
            now_ms = min([tick_ms, *times])
            if now_ms > tick_ms + LONGEST_MS:
                return self.trace
            self._take(self._cluster.advance(now_ms))
            if now_ms >= tick_ms:
                self.state.apply(self._cluster.sample())
                for ready in self.state.overdue():
                    self._apply_ready(ready)
                self._take(self.state.unstarted())
                tick_ms += STEP_MS
            while arrivals and arrivals[-1].event_time_ms <= now_ms:
                self._submit(arrivals.pop())
            self._decide()

    def _submit(self, workflow: WorkflowSubmitted) -> None:
        self.trace.apply(workflow)
        self._cluster.learn(workflow)
        for ready in self.state.apply(workflow):
            self._apply_ready(ready)

    def _take(self, events: Iterable[TaskEvent]) -> None:
        for event in events:
            self.trace.apply(event)
            for ready in self.state.apply(event):
                self._apply_ready(ready)

    def _apply_ready(self, ready: TaskReady) -> None:
        self.trace.apply(ready)
        self.state.apply(ready)

    def _decide(self) -> None:
        for batch in decide(self.state, self.policy, self._constraints, self.settings.decide, Stamp()):
            self.decisions += len(batch.placements)
            for placement in batch.placements:
                self.trace.apply(placement)
                self._take(self._cluster.place(placement))
            if self._on_batch is not None:
                self._on_batch(self.state, batch)
