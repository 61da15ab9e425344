"""Advantage actor-critic: the network learns from each of its own choices, many episodes at a time.

It begins as the policy that was found by search: what it adds has no say yet. With `clip`, the same is PPO.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from policy.features import ORDER_FEATURES, PAIR_FEATURES
from policy.heuristics import HEURISTICS
from policy.network import CLOSED, CONTEXT, HIDDEN, KEY, ActorCritic
from policy.reward import Baseline
from policy.weight_set import WeightSet, read_weights, write_weights
from schemas.errors import InvalidConfiguration
from trainer import acceptance
from trainer.arena import PAIRS
from trainer.boards import OF_TASK, encoded
from trainer.checkpoint import Checkpoint
from trainer.clone import one_thread
from trainer.evaluate import USUAL, usual_baseline
from trainer.export import Origin, exported, restored
from trainer.residual import FIXED, Residual, changing_columns
from trainer.returns import Scale, advantages
from trainer.rollouts import Batch, Rollouts, RolloutSettings
from trainer.rules import HEURISTIC_RULES, rule_of
from trainer.scenarios import digest
from trainer.search import by_hand, compare
from trainer.statistics import feature_statistics
from trainer.workers import start_workers

Report = Callable[[str], None]

DESCRIBED = 6
"""Scenarios, the last ones, of which the manifest says how the features are distributed."""


@dataclass(frozen=True, kw_only=True)
class LearnSettings:
    """How long is learnt, from what, and how."""

    out: Path
    """The folder that gets the weights."""
    start: Path | None = None
    """Weights to begin with, in a folder; None: a linear policy by hand."""
    decisions: int = 300_000
    """To learn from, of all environments together."""
    rollouts: RolloutSettings = field(default_factory=RolloutSettings)
    minibatches: int = 4
    """Steps of the optimiser over one batch."""
    epochs: int = 1
    """Times that a batch is learnt from; more than once only with `clip`."""
    clip: float = 0.0
    """PPO: how far a choice's probability may move from what it was; 0: plain A2C."""
    learning_rate: float = 3e-4
    """Of the first step; it falls to 0 in a line."""
    value_rate: float = 1e-3
    """The critic's, likewise."""
    entropy: float = 0.01
    """What an even choice is worth at the beginning,"""
    entropy_last: float = 0.0005
    """and at the end; between, it falls by the same factor with each update."""
    trace: float = 0.95
    """Of the generalised advantage estimates."""
    warm_up: float = 0.06
    """Share of the training in which only the critic learns."""
    key_share: float = 0.5
    """Share of the decisions that are learnt from."""
    by_importance: bool = True
    """Whether these are drawn by how much they matter, and weighed to make up for it; else all count alike."""
    checked: int = 24
    """Fresh scenarios of each load, for the comparison at the end."""
    log: Path | None = None
    """Folder for TensorBoard."""
    keep_anyway: bool = False
    """Write the weights even where they are not better than those of the start."""
    seed: int = 0
    processes: int | None = None
    """Of the comparison at the end; None: one for each processor."""

    def __post_init__(self) -> None:
        for name, least in (("decisions", 1), ("minibatches", 1), ("epochs", 1), ("checked", 2)):
            if getattr(self, name) < least:
                raise InvalidConfiguration(
                    f"learn.{name}", f"{getattr(self, name)} is too small", f"give {least} or more"
                )
        for name in ("clip", "learning_rate", "value_rate", "entropy", "entropy_last", "warm_up"):
            if not 0 <= getattr(self, name) < 1:
                raise InvalidConfiguration(f"learn.{name}", f"{getattr(self, name)} is out of range", "give 0 to 1")
        if not 0 < self.key_share <= 1 or not 0 <= self.trace <= 1:
            raise InvalidConfiguration("learn", "key_share and trace are shares", "give 0 to 1")
        if self.minibatches > self.rollouts.environments:
            raise InvalidConfiguration(
                "learn.minibatches",
                "are more than there are environments",
                f"give {self.rollouts.environments} at most",
            )
        if self.epochs > 1 and not self.clip:
            raise InvalidConfiguration("learn.epochs", "more than one needs clipping", "give --clip 0.2 as well")

    @property
    def updates(self) -> int:
        """Batches."""
        return max(1, round(self.decisions / (self.rollouts.environments * self.rollouts.steps)))

    def command(self, before: str | None = None) -> str:
        """What makes these weights again; `before`: what made those that it begins with."""
        first = "" if before is None else f"{before} --out start && "
        more = f" --clip {self.clip:g} --epochs {self.epochs}" if self.clip else ""
        more += "" if before is None else " --start start"
        more += " --traces TRACES" if self.rollouts.traces else ""
        return f"{first}headrace train learn --decisions {self.decisions} --seed {self.seed}{more}"

    @property
    def essence(self) -> str:
        """All that the weights depend on, the start aside."""
        kept = replace(self, out=Path(), start=None, log=None, processes=None, checked=2, keep_anyway=False)
        return repr(kept)


@dataclass(frozen=True)
class Beginning:
    """The policy that training begins with: its network, the order of the tasks, and where it comes from."""

    network: ActorCritic
    weight_k: np.ndarray
    weights: WeightSet | None


def beginning(settings: LearnSettings) -> Beginning:
    """What training begins with. Raises UnusableWeights where that looks at the nodes' windows."""
    if settings.start is None:
        weight_p, weight_k = by_hand()
        linear = Residual.linear(weight_p, weight_k, 0, np.random.default_rng(settings.seed))
        return Beginning(_without_windows(linear.network(settings.seed)), weight_k, None)
    weights = read_weights(settings.start)
    rule_of(weights, settings.rollouts.temperature)
    weight_k = np.array([weights.manifest.order.get(name, 0.0) for name in ORDER_FEATURES])
    return Beginning(_without_windows(restored(weights)), weight_k, weights)


def _without_windows(network: ActorCritic) -> ActorCritic:
    """Compiled episodes have no windows: what looks at them gets no say, so that the network serves as it was trained.

    With it goes the critic's view of them.
    """
    with torch.no_grad():
        network.head.mix[0].weight[:, changing_columns().stop :] = 0
    return network


def without_dags(network: ActorCritic) -> ActorCritic:
    """The network without its view of embeddings."""
    with torch.no_grad():
        network.head.mix[0].weight[:, FIXED:OF_TASK] = 0
    return network


def learn(settings: LearnSettings, report: Report = print) -> Path:
    """Train the network, compare it with its start and heuristics on fresh scenarios, and write what is better.

    One seed makes one set of weights, to the bit on one kind of processor. Returns the folder.
    Raises InvalidConfiguration, UnusableWeights.
    """
    started = time.monotonic()
    begin = beginning(settings)
    with start_workers(settings.processes) as workers:
        usual = usual_baseline(workers)
    checkpoint = Checkpoint(settings.out, settings.essence)
    with one_thread(), _log(settings) as log:
        training = Training(settings, begin, usual)
        training.run(report, log, checkpoint)
    chosen, is_better = judged(settings, begin, training, usual, report)
    write_weights(chosen, settings.out)
    checkpoint.remove()
    kept = "the trained network" if is_better or settings.keep_anyway else "its start, which it does not beat for sure"
    report(f"{settings.out}: {kept}, weights {chosen.manifest.version}, {time.monotonic() - started:.0f} s")
    return settings.out


def _log(settings: LearnSettings) -> Any:
    return nullcontext() if settings.log is None else SummaryWriter(str(settings.log))


def judged(
    settings: LearnSettings, begin: Beginning, training: Training, usual: Baseline, report: Report
) -> tuple[WeightSet, bool]:
    """The weights to keep, with the comparison in their manifest, and whether the network is better than its start."""
    order = dict(zip(ORDER_FEATURES, map(float, begin.weight_k), strict=True))
    config = hashlib.sha256(settings.essence.encode()).hexdigest()
    parent = None if begin.weights is None else begin.weights.manifest.version
    command = settings.command(None if begin.weights is None else begin.weights.manifest.command)
    start = begin.weights or exported(begin.network, Origin(command, settings.seed, order=order))
    courses = training.rollouts.courses()
    origin = Origin(
        command,
        settings.seed,
        parent,
        order=order,
        data=digest(courses),
        config=config,
        statistics=feature_statistics(HEURISTICS["srcp"], courses[-DESCRIBED:]),
    )
    trained = exported(training.network, origin)
    temperature = settings.rollouts.temperature
    rivals = {name: HEURISTIC_RULES[name] for name in (USUAL, "srcp_spare_gpu")}
    rivals[acceptance.START] = rule_of(start, temperature)
    with start_workers(settings.processes) as workers:
        figures = compare(workers, settings.checked, rule_of(trained, temperature), rivals, usual, report)
    gains = [(gain, figures[f"{key}, margin"]) for key, gain in figures.items() if key.endswith(acceptance.START)]
    is_better = all(gain > margin for gain, margin in gains)
    if not is_better and not settings.keep_anyway:
        return start, False
    return WeightSet(replace(trained.manifest, evaluation=figures), trained.files), is_better


class Training:
    """A training under way."""

    def __init__(self, settings: LearnSettings, begin: Beginning, usual: Baseline) -> None:
        self.settings = settings
        self.network = ActorCritic()
        self.network.load_state_dict(begin.network.state_dict())
        if not settings.rollouts.sees_dags:
            without_dags(self.network)
        self.rollouts = Rollouts(replace(settings.rollouts, seed=settings.seed), begin.network, begin.weight_k, usual)
        self.rng = np.random.default_rng((settings.seed, 2))
        self.scale = Scale()
        self.done = 0
        critic = list(self.network.critic.parameters())
        actor = [*self.network.head.parameters(), *self.network.dags.parameters()]
        self._parts = {"policy": actor, "value": critic}
        rates = {"policy": settings.learning_rate, "value": settings.value_rate}
        self._optimiser = torch.optim.Adam(
            [{"params": part, "lr": rates[name], "first": rates[name]} for name, part in self._parts.items()], eps=1e-5
        )

    def run(self, report: Report, log: Any = None, checkpoint: Checkpoint | None = None) -> None:
        """Train to the end, from where the checkpoint says."""
        state = None if checkpoint is None else checkpoint.read()
        if state is not None:
            self.restore(state)
            report(f"goes on after update {self.done}")
        started, first, updates = time.monotonic(), self.done, self.settings.updates
        every = max(1, updates // 20)
        while self.done < updates:
            figures = self.update()
            if log is not None:
                for name, value in figures.items():
                    log.add_scalar(f"learn/{name}", value, self.done)
            if self.done % every == 0 or self.done == updates:
                passed = time.monotonic() - started
                left = passed / (self.done - first) * (updates - self.done)
                report(_line(self.done, updates, figures, passed, left))
                if checkpoint is not None:
                    checkpoint.write(self.state())
        self.network.eval()

    def update(self) -> Mapping[str, float]:
        """Play a batch, and learn from it; returns figures for the log."""
        settings, share = self.settings, self.done / self.settings.updates
        for group in self._optimiser.param_groups:
            group["lr"] = group["first"] * (1 - share)
        batch = self.rollouts.roll(self.network, share)
        value_se, last_e = self._values(batch)
        advantage_se = advantages(batch.reward_se, batch.discount_se, value_se, last_e, settings.trace)
        return_se = advantage_se + value_se
        self.scale.learn(return_se)
        entropy = settings.entropy * (settings.entropy_last / max(settings.entropy, 1e-12)) ** share
        is_warm = share >= settings.warm_up
        found = [
            self._descend(batch, rows_b, weight_b, advantage_se, return_se, entropy, is_warm)
            for rows_b, weight_b in self._minibatches(batch, advantage_se)
        ]
        self.done += 1
        surprise = float((return_se - value_se).var() / max(return_se.var(), 1e-12))
        recent = self.rollouts.gains[-settings.rollouts.environments :]
        return {
            "reward": float(batch.reward_se.mean()),
            "gain_over_start": float(np.mean(recent)) if recent else 0.0,
            "explained": 1 - surprise,
            "entropy_weight": entropy,
            "tasks_most": float(max(b.first_w[1] for b in batch.boards)),
            **{f"trouble_{name.replace(' ', '_')}": v for name, v in self.rollouts.adversary.loss.items()},
            **{name: float(np.mean([figures[name] for figures in found])) for name in found[0]},
        }

    @torch.no_grad()
    def _values(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """What each state is worth, value_se, and the last ones, last_e."""

        def worth(fixed: np.ndarray, changing: np.ndarray, pairs: np.ndarray, mask: np.ndarray) -> np.ndarray:
            context_bc = _context(torch.from_numpy(fixed), torch.from_numpy(changing))
            value_b = self.network.critic(context_bc, _pairs(pairs), torch.from_numpy(mask))
            return value_b.double().numpy() * self.scale.spread + self.scale.centre

        steps, environments = batch.reward_se.shape
        flat = (batch.fixed_sec, batch.changing_sec, batch.pair_sepn, batch.mask_sen)
        value_b = worth(*(array.reshape(-1, *array.shape[2:]) for array in flat))
        return value_b.reshape(steps, environments), worth(*batch.last)

    def _minibatches(self, batch: Batch, advantage_se: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows of the batch, laid out flat, and what each counts: environments together, which share DAGs.

        Of each group, the decisions that matter are drawn more often, and count less.
        """
        steps, environments = advantage_se.shape
        row_se = np.arange(steps * environments).reshape(steps, environments)
        key_se = priority(advantage_se, batch.mask_sen)
        for _ in range(self.settings.epochs):
            for group in np.array_split(self.rng.permutation(environments), self.settings.minibatches):
                row_b, chance_b = row_se[:, group].ravel(), key_se[:, group].ravel()
                count = max(1, round(self.settings.key_share * len(row_b)))
                if self.settings.by_importance:
                    chance_b = chance_b / chance_b.sum()
                    drawn = self.rng.choice(len(row_b), count, p=chance_b)
                    yield row_b[drawn], 1 / (len(row_b) * chance_b[drawn])
                else:
                    yield self.rng.choice(row_b, count, replace=False), np.ones(count)

    def _descend(
        self,
        batch: Batch,
        row_b: np.ndarray,
        weight_b: np.ndarray,
        advantage_se: np.ndarray,
        return_se: np.ndarray,
        entropy: float,
        is_warm: bool,
    ) -> Mapping[str, float]:
        """One step of the optimiser on these rows."""
        spread, centre = float(advantage_se.std()) + 1e-8, float(advantage_se.mean())
        advantage_b = torch.from_numpy((advantage_se.ravel()[row_b] - centre) / spread).float()
        target_b = torch.from_numpy((return_se.ravel()[row_b] - self.scale.centre) / self.scale.spread).float()
        weights_b = torch.from_numpy(weight_b).float()
        log_prob_bn, value_b = self._answers(batch, row_b)
        chosen_b = log_prob_bn.gather(1, torch.from_numpy(batch.node_se.ravel()[row_b])[:, None]).squeeze(1)
        before_b = torch.from_numpy(batch.log_prob_se.ravel()[row_b]).float()
        entropy_b = -(log_prob_bn.exp() * log_prob_bn).sum(dim=1)
        loss_b = _policy_loss(chosen_b, before_b, advantage_b, self.settings.clip) - entropy * entropy_b
        value_loss = (weights_b * (value_b - target_b) ** 2).mean()
        loss = value_loss + (weights_b * loss_b).mean() if is_warm else value_loss
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norms = {name: torch.nn.utils.clip_grad_norm_(part, 0.5) for name, part in self._parts.items()}
        self._optimiser.step()
        return {
            "entropy": float((weights_b * entropy_b).detach().mean()),
            "value_loss": float(value_loss),
            "moved": float((before_b - chosen_b.detach()).mean()),
            **{f"gradient_{name}": float(norm) for name, norm in norms.items()},
        }

    def _answers(self, batch: Batch, row_b: np.ndarray) -> tuple[Tensor, Tensor]:
        """log_prob_bn [B, N] of the policy, and value_b, which teaches the encoder nothing."""
        fixed_bc = _rows(batch.fixed_sec, row_b)
        if self.settings.rollouts.sees_dags:
            fixed_bc = self._encoded(batch, row_b, fixed_bc)
        changing_bc, pair_bpn = _rows(batch.changing_sec, row_b), _pairs(_rows(batch.pair_sepn, row_b).numpy())
        mask_bn = _rows(batch.mask_sen, row_b)
        context_bc = _context(fixed_bc, changing_bc)
        nodes = mask_bn.shape[1]
        logits_bn = self.network.head(context_bc, torch.zeros(KEY, nodes), torch.zeros(nodes), pair_bpn)
        logits_bn = (logits_bn / self.settings.rollouts.temperature).masked_fill(~mask_bn, CLOSED)
        value_b = self.network.critic(context_bc.detach(), pair_bpn, mask_bn)
        return torch.log_softmax(logits_bn, dim=1), value_b

    def _encoded(self, batch: Batch, row_b: np.ndarray, fixed_bc: Tensor) -> Tensor:
        """The fixed features with what the encoder says of the DAGs now, so that it learns."""
        board_b, task_b = batch.board_se.ravel()[row_b], batch.task_se.ravel()[row_b]
        workflow_b = np.empty(len(row_b), np.int64)
        for at in np.unique(board_b):
            of_board = board_b == at
            workflow_b[of_board] = batch.boards[at].course.scenario.workflow_t[task_b[of_board]]
        dag_g2, dag_b = np.unique(np.stack([board_b, workflow_b], axis=1), axis=0, return_inverse=True)
        dags = [(batch.boards[board], int(workflow)) for board, workflow in dag_g2.tolist()]
        embedding_th, vector_gh = encoded(self.network, dags)
        begin_g = np.array([board.first_w[workflow] for board, workflow in dags])
        size_g = np.array([board.first_w[workflow + 1] for board, workflow in dags]) - begin_g
        first_g = np.cumsum(size_g) - size_g
        dag_b = dag_b.ravel()
        at_b = torch.from_numpy(task_b - begin_g[dag_b] + first_g[dag_b])
        return torch.cat([fixed_bc[:, :FIXED], embedding_th[at_b], vector_gh[torch.from_numpy(dag_b)]], dim=1)

    def state(self) -> dict[str, object]:
        """Where it stands, between two updates."""
        tensors = io.BytesIO()
        torch.save({"network": self.network.state_dict(), "optimiser": self._optimiser.state_dict()}, tensors)
        return {
            "done": self.done,
            "rng": self.rng,
            "scale": asdict(self.scale),
            "tensors": tensors.getvalue(),
            "rollouts": self.rollouts.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Come to stand there again."""
        tensors = torch.load(io.BytesIO(state["tensors"]), weights_only=True)
        self.network.load_state_dict(tensors["network"])
        self._optimiser.load_state_dict(tensors["optimiser"])
        self.done, self.rng, self.scale = state["done"], state["rng"], Scale(**state["scale"])
        self.rollouts.restore(state["rollouts"])


def _policy_loss(chosen_b: Tensor, before_b: Tensor, advantage_b: Tensor, clip: float) -> Tensor:
    """loss_b: plain policy gradient; with `clip`, PPO's: no further gain once the probability has moved so far.

    Sources: Mnih et al. 2016, arXiv 1602.01783; Schulman et al. 2017, arXiv 1707.06347.
    """
    if clip == 0:
        return -advantage_b * chosen_b
    ratio_b = (chosen_b - before_b).exp()
    return -torch.minimum(ratio_b * advantage_b, ratio_b.clamp(1 - clip, 1 + clip) * advantage_b)


def priority(advantage_se: np.ndarray, mask_sen: np.ndarray) -> np.ndarray:
    """How much each decision matters: its surprise, where there is a choice; and a little for each, for the critic."""
    has_choice_se = mask_sen.sum(axis=2) > 1
    surprise_se = np.abs(advantage_se - advantage_se.mean())
    return np.where(has_choice_se, surprise_se, 0) + 0.25 * surprise_se.mean() + 1e-12


def _rows(array: np.ndarray, row_b: np.ndarray) -> Tensor:
    return torch.from_numpy(array.reshape(-1, *array.shape[2:])[row_b])


def _context(fixed_bc: Tensor, changing_bc: Tensor) -> Tensor:
    """context_bc [B, CONTEXT] of the head and the critic: nothing is known of the nodes' windows."""
    return torch.cat([fixed_bc, changing_bc, torch.zeros(len(fixed_bc), HIDDEN)], dim=1)


def _pairs(pair_bpn: np.ndarray) -> Tensor:
    """pair_bpn with the wishes, which are 0 here."""
    wishes_b1n = np.zeros((len(pair_bpn), len(PAIR_FEATURES) - PAIRS, pair_bpn.shape[2]), np.float32)
    return torch.from_numpy(np.concatenate([pair_bpn, wishes_b1n], axis=1))


def _line(done: int, updates: int, figures: Mapping[str, float], passed: float, left: float) -> str:
    return (
        f"update {done}/{updates}: {figures['gain_over_start']:+.4f} against its start, "
        f"entropy {figures['entropy']:.2f}, explained {figures['explained']:+.2f}, {passed:.0f} s, {left:.0f} s left"
    )


assert OF_TASK + (changing_columns().stop - changing_columns().start) + HIDDEN == CONTEXT
