"""What the policy of the moment does in many episodes side by side, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from policy.network import ActorCritic
from policy.reward import Baseline, reward
from trainer.anomalies import recordings
from trainer.arena import NOBODY, Rule
from trainer.boards import Board, Head, encode, rule_in
from trainer.practice import CALM, NODES, RECORDED, RECORDED_SHARE, Adversary, Lesson, tasks_at
from trainer.scenarios import Course, run
from trainer.steps import Prices, Steps, prices

SOON_MS = 300_000
"""DAGs that come within this time are encoded together with those under way."""


@dataclass(frozen=True, kw_only=True)
class RolloutSettings:
    """How much is played at a time, and what."""

    environments: int = 32
    steps: int = 64
    """Decisions of each environment between two updates."""
    pool: int = 32
    """Episodes of each kind that there are."""
    horizon_s: float = 400.0
    """After this time a reward counts 1/e."""
    temperature: float = 0.3
    """As served."""
    seed: int = 0
    is_staged: bool = True
    """Whether small workflows come first."""
    has_adversary: bool = True
    """Whether half of the episodes bring more trouble than is usual."""
    sees_dags: bool = True
    """Whether the tasks' embeddings are looked at."""
    traces: Path | None = None
    """Folder of recorded node metrics: a tenth of the episodes then has the anomalies of one; None: none has."""


@dataclass(frozen=True)
class Batch:
    """Decisions and what came of them. Axes: S steps, E environments, N nodes.

    fixed_sec [S, E, OF_TASK], changing_sec, pair_sepn, mask_sen   what the decider saw
    board_se, task_se                                              which of `boards`, which of its tasks
    node_se, log_prob_se                                           what it chose, and how likely that was
    reward_se, discount_se                                         what that brought; what the next state counts
    last                                                           fixed, changing, pairs and mask after the last step
    """

    boards: list[Board]
    fixed_sec: np.ndarray
    changing_sec: np.ndarray
    pair_sepn: np.ndarray
    mask_sen: np.ndarray
    board_se: np.ndarray
    task_se: np.ndarray
    node_se: np.ndarray
    log_prob_se: np.ndarray
    reward_se: np.ndarray
    discount_se: np.ndarray
    last: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass
class Episode:
    """What an environment plays, and has done so far: enough to come here again."""

    lesson: Lesson
    skipped: int
    taken: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Known:
    """A lesson's course; how the start decides in it, and the reward that it gets."""

    board: Board
    rule: Rule
    prices: Prices
    usual: float


class Rollouts:
    """Environments that the policy plays in, lesson after lesson.

    start, weight_k  the policy that training began with, whom everybody is compared with; the order of the tasks
    """

    def __init__(self, settings: RolloutSettings, start: ActorCritic, weight_k: np.ndarray, usual: Baseline) -> None:
        self.settings = settings
        self.rng = np.random.default_rng((settings.seed, 1))
        self.adversary = Adversary() if settings.has_adversary else Adversary(names=(CALM,))
        self.gains: list[float] = []
        """Of the episodes that are over: how much more reward than the start got in them."""
        self._start, self._weight_k, self._usual = start, weight_k, usual
        self._recorded = [] if settings.traces is None else recordings(settings.traces)
        self._known: dict[Lesson, Known] = {}
        self._met: dict[Lesson, None] = {}
        """The lessons so far, in the order in which they first came."""
        self._steps = Steps(settings.environments, NODES)
        self._episodes: list[Episode] = []
        self._tasks: tuple[int, int] | None = None

    def roll(self, network: ActorCritic, share: float) -> Batch:
        """Let the network decide for a while; `share`: of the training that is done."""
        settings, head = self.settings, Head(network)
        self._prepare(network, share)
        boards: list[Board] = []
        rows: list[tuple[np.ndarray, ...]] = []
        for _ in range(settings.steps):
            fixed_ec, changing_ec, pair_epn, mask_en = self._look(network)
            task_e = self._steps.seen.task_e.copy()
            board_e = np.array([_index(boards, self._board(e)) for e in range(settings.environments)])
            node_e, log_prob_e = self._choose(head.logits(fixed_ec, changing_ec, pair_epn), mask_en)
            for episode, node in zip(self._episodes, node_e.tolist(), strict=True):
                episode.taken.append(node)
            seen = self._steps.step(node_e)
            discount_e = np.exp(-seen.passed_s_e / settings.horizon_s)
            discount_e[seen.task_e == NOBODY] = 0
            came = (board_e, task_e, node_e, log_prob_e, seen.reward_e.copy(), discount_e)
            rows.append((fixed_ec, changing_ec, pair_epn, mask_en, *came))
            self._renew(share)
        together = [np.stack(column) for column in zip(*rows, strict=True)]
        return Batch(boards, *together, last=self._look(network))  # type: ignore[misc]

    def _prepare(self, network: ActorCritic, share: float) -> None:
        """Begin where nothing has begun, or with the next stage; forget what the network was before."""
        tasks = tasks_at(share, self.settings.is_staged)
        if tasks != self._tasks:
            self._tasks = tasks
            self._episodes = []
            for e in range(self.settings.environments):
                lesson = self._lesson(share)
                length = len(self._learnt(lesson).board.course.scenario.workflow_t)
                self._begin(e, Episode(lesson, int(self.rng.integers(0, 4 * length // 5))))
        for known in self._known.values():
            known.board.forget()
        if self.settings.sees_dags:
            near = [(self._board(e), int(w)) for e in range(len(self._episodes)) for w in self._steps.live(e, SOON_MS)]
            encode(network, dict.fromkeys(near))

    def _look(self, network: ActorCritic) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """What the environments show: the fixed and changing features of their tasks, the pairs and the masks."""
        seen = self._steps.seen
        at = [(self._board(e), int(t)) for e, t in enumerate(seen.task_e)]
        if self.settings.sees_dags:
            encode(network, dict.fromkeys((board, int(board.course.scenario.workflow_t[t])) for board, t in at))
        fixed_ec = np.stack([board.fixed_tc[t] for board, t in at])
        return fixed_ec, seen.changing_ec.copy(), seen.pair_epn.copy(), seen.mask_en.copy()

    def _choose(self, logits_en: np.ndarray, mask_en: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Nodes drawn from the softmax, and the logarithms of their probabilities."""
        logits_en = np.where(mask_en, logits_en / self.settings.temperature, -np.inf)
        logits_en -= logits_en.max(axis=1, keepdims=True)
        node_e = (logits_en + self.rng.gumbel(size=logits_en.shape)).argmax(axis=1)
        total_e = np.log(np.exp(logits_en).sum(axis=1))
        return node_e, logits_en[np.arange(len(node_e)), node_e] - total_e

    def _renew(self, share: float) -> None:
        """Where an episode is over, learn from it what is hard, and begin the next."""
        for e in np.flatnonzero(self._steps.seen.task_e == NOBODY).tolist():
            lesson = self._episodes[e].lesson
            gain = reward(self._steps.measured(e), self._usual) - self._learnt(lesson).usual
            self.gains.append(gain)
            self.adversary.learn(lesson.trouble, gain)
            self._begin(e, Episode(self._lesson(share), 0))

    def _begin(self, e: int, episode: Episode) -> None:
        known = self._learnt(episode.lesson)
        self._met[episode.lesson] = None
        self._steps.put(e, known.board.course, known.rule, known.prices, episode.skipped)
        self._episodes[e : e + 1] = [episode]

    def _lesson(self, share: float) -> Lesson:
        at = int(self.rng.integers(self.settings.pool))
        is_recorded = bool(self._recorded) and self.rng.random() < RECORDED_SHARE
        trouble = RECORDED if is_recorded else self.adversary.choose(self.rng)
        return Lesson(tasks_at(share, self.settings.is_staged), trouble, at)

    def _board(self, e: int) -> Board:
        return self._known[self._episodes[e].lesson].board

    def _learnt(self, lesson: Lesson) -> Known:
        """What is known of the lesson, which is made when it first comes."""
        if lesson not in self._known:
            board = Board(lesson.course(self.settings.seed, self._recorded))
            rule = rule_in(self._start, self._weight_k, self.settings.temperature, board)
            usual = reward(run(board.course, rule).measured(), self._usual)
            self._known[lesson] = Known(board, rule, prices(board.course, self._usual), usual)
        return self._known[lesson]

    def courses(self) -> list[Course]:
        """The scenarios of all lessons so far."""
        known, seed = self._known, self.settings.seed
        return [known[x].board.course if x in known else x.course(seed, self._recorded) for x in self._met]

    def state(self) -> dict[str, object]:
        """Where the environments stand, to be written down between two rolls."""
        return {
            "rng": self.rng,
            "adversary": self.adversary,
            "gains": self.gains,
            "tasks": self._tasks,
            "episodes": self._episodes,
            "met": self._met,
        }

    def restore(self, state: dict[str, object]) -> None:
        """Come to stand there again: what was chosen is chosen again."""
        self.rng, self.adversary = state["rng"], state["adversary"]  # type: ignore[assignment]
        self.gains, self._tasks = state["gains"], state["tasks"]  # type: ignore[assignment]
        self._met = state["met"]  # type: ignore[assignment]
        episodes: list[Episode] = state["episodes"]  # type: ignore[assignment]
        self._episodes = []
        for e, episode in enumerate(episodes):
            self._begin(e, episode)
        longest = max((len(episode.taken) for episode in episodes), default=0)
        for at in range(longest):
            taken_e = [episode.taken[at] if at < len(episode.taken) else NOBODY for episode in episodes]
            self._steps.step(np.array(taken_e))


def _index(boards: list[Board], board: Board) -> int:
    for at, known in enumerate(boards):
        if known is board:
            return at
    boards.append(board)
    return len(boards) - 1
