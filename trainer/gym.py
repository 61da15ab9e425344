"""The simulator as a Gymnasium environment: one episode, a decision a step."""

from __future__ import annotations

from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from policy.reward import Baseline
from trainer.arena import CHANGING, NOBODY, PAIRS
from trainer.evaluate import usual_baseline
from trainer.residual import FIXED
from trainer.rules import HEURISTIC_RULES
from trainer.steps import Steps, prices
from trainer.suite import STANDARD, TRAINING, Setup
from trainer.workers import start_workers

INFEASIBLE = -0.1
"""What choosing a node that may not take the task costs."""
SCENARIOS = 2**31

Shown = dict[str, np.ndarray]


class Placing(gymnasium.Env[Shown, np.int64]):
    """Place the tasks of workflows on the nodes of a cluster, one after the other.

    Observation, of the task to be placed (features: policy.features, in their order; float32):
        pairs [N, PAIRS]      with each node, without the wishes, which are 0 here; 0 where the node is infeasible
        mask  [N] int8        1 where the node may take it
        task  [FIXED + CHANGING]  what is fixed of the task, then what changes of it and its pool
    Action: the node. One that is infeasible is replaced by the next feasible one, and costs INFEASIBLE.
    Reward: that of `trainer.steps`; over an episode about the number of workflows times that of policy.reward.
    info["action_mask"] is the mask; at the end of an episode, which terminates by itself, all is 0.
    One seed makes one episode; `order` is the heuristic that orders the waiting tasks.
    """

    def __init__(self, setup: Setup = STANDARD[0], order: str = "srcp", usual: Baseline | None = None) -> None:
        def features(*shape: int) -> spaces.Box:
            return spaces.Box(-np.inf, np.inf, shape, np.float32)

        self.observation_space = spaces.Dict(
            {
                "pairs": features(setup.nodes, PAIRS),
                "mask": spaces.MultiBinary(setup.nodes),
                "task": features(FIXED + CHANGING),
            }
        )
        self.action_space = spaces.Discrete(setup.nodes)
        self._setup, self._rule = setup, HEURISTIC_RULES[order]
        self._usual = usual or _usual()
        self._steps = Steps(1, setup.nodes)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Shown, dict[str, Any]]:
        """Begin an episode: with a seed that seed's, without one the next that chance brings."""
        super().reset(seed=seed)
        course = self._setup.course(TRAINING, int(self.np_random.integers(SCENARIOS)))
        self._graph_tf = course.graphs.graph_tf
        self._steps.put(0, course, self._rule, prices(course, self._usual))
        return self._shown()

    def step(self, action: np.int64) -> tuple[Shown, float, bool, bool, dict[str, Any]]:
        """Place the task, and play on to the next."""
        mask_n = self._steps.seen.mask_en[0]
        node = int(action)
        is_feasible = bool(mask_n[node])
        if not is_feasible:
            node = int((node + np.roll(mask_n, -node).argmax()) % len(mask_n))
        seen = self._steps.step(np.array([node]))
        reward = float(seen.reward_e[0]) + (0.0 if is_feasible else INFEASIBLE)
        shown, info = self._shown()
        return shown, reward, bool(seen.task_e[0] == NOBODY), False, info

    def _shown(self) -> tuple[Shown, dict[str, Any]]:
        seen = self._steps.seen
        task = int(seen.task_e[0])
        of_task = np.zeros(FIXED + CHANGING, np.float32)
        if task != NOBODY:
            of_task[:FIXED], of_task[FIXED:] = self._graph_tf[task], seen.changing_ec[0]
        mask_n = seen.mask_en[0].astype(np.int8)
        return {"pairs": seen.pair_epn[0].T.copy(), "mask": mask_n, "task": of_task}, {"action_mask": mask_n.copy()}


@cache
def _usual() -> Baseline:
    with start_workers(1) as workers:
        return usual_baseline(workers)
