"""Fine-tuning from logged decisions: what a policy weighs is moved a little, towards what came out better.

Of the network, what weighs the pair features learns: the last layer of the scoring head, of the hidden units that have
a say. Encoders and hidden units stay as they are, so that the policy is the parent's wherever nothing was learnt.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from policy.network import CLOSED, ActorCritic
from schemas.errors import InvalidConfiguration
from trainer.clone import one_thread

RIDGE = 1.0
MOST_ESTIMATE_WEIGHT = 20.0
"""Larger importance weights count as this in an estimate: a little bias for much less variance."""
EMERGENCY_RATE = 10.0
EMERGENCY_STEPS = 50


@dataclass(frozen=True, kw_only=True)
class FineTuneSettings:
    """How much is learnt, and how far the result may be from its parent."""

    steps: int = 200
    """Of the optimiser."""
    batch: int = 1024
    """Decisions of one step, drawn by the seed."""
    learning_rate: float = 3e-3
    """Of the first step; it falls to 0 in a line."""
    most_weight: float = 1.0
    """A decision counts as much as the policy is likelier to make it than the decider was, at most this: V-trace's."""
    kl_weight: float = 1.0
    """What a nat of distance from the parent costs."""
    most_kl: float = 0.02
    """Mean distance from the parent over all decisions, nats, at which learning ends."""
    check_every: int = 10
    """Steps between two looks at that distance."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "check_every"):
            if getattr(self, name) < 1:
                raise InvalidConfiguration(f"fine_tune.{name}", f"{getattr(self, name)} is too small", "give 1 or more")
        for name in ("learning_rate", "most_weight", "most_kl"):
            if not 0 < getattr(self, name) <= 100:
                raise InvalidConfiguration(
                    f"fine_tune.{name}", f"{getattr(self, name)} is out of range", "give 0 to 100"
                )
        if not 0 <= self.kl_weight <= 1000:
            raise InvalidConfiguration("fine_tune.kl_weight", f"{self.kl_weight} is out of range", "give 0 to 1000")

    @property
    def emergency(self) -> FineTuneSettings:
        """Ten times the learning rate, few steps; the bound of the distance stays."""
        return replace(self, learning_rate=EMERGENCY_RATE * self.learning_rate, steps=EMERGENCY_STEPS)


@dataclass(frozen=True)
class Lessons:
    """Logged decisions and what came of them. Axes: B decisions, C context, P pair features, N nodes (padded).

    context_bc [B, C], pair_bpn [B, P, N]  float32, what the scoring head saw
    mask_bn [B, N] bool         the nodes that could take the task at its turn
    node_b [B] int64            the chosen one
    log_prob_b [B] float64      of that choice, as it was made; temperature_b [B] float64, at which
    reward_b [B] float64        what it was worth
    """

    context_bc: np.ndarray
    pair_bpn: np.ndarray
    mask_bn: np.ndarray
    node_b: np.ndarray
    log_prob_b: np.ndarray
    temperature_b: np.ndarray
    reward_b: np.ndarray

    def __len__(self) -> int:
        return len(self.node_b)

    def of(self, chosen_b: np.ndarray) -> Lessons:
        """These of them: [B] bool, or their rows."""
        return Lessons(*(getattr(self, field.name)[chosen_b] for field in fields(self)))

    @property
    def digest(self) -> str:
        """SHA-256 of all of it."""
        whole = hashlib.sha256()
        for field in fields(self):
            array = np.ascontiguousarray(getattr(self, field.name))
            whole.update(f"{field.name} {array.dtype} {array.shape}".encode() + array.tobytes())
        return whole.hexdigest()


@dataclass(frozen=True)
class Expectation:
    """What a state lets expect, linear in what is known before the choice: it moves no policy, but takes noise away."""

    mean: float
    mean_f: np.ndarray
    spread_f: np.ndarray
    coefficient_f: np.ndarray

    @classmethod
    def fitted(cls, features_bf: np.ndarray, reward_b: np.ndarray) -> Expectation:
        """By ridge regression, features_bf [B, F]; what never changes says nothing."""
        mean_f, spread_f = features_bf.mean(axis=0), features_bf.std(axis=0)
        spread_f = np.where(spread_f > 1e-9, spread_f, np.inf)
        scaled_bf = (features_bf - mean_f) / spread_f
        held_ff = scaled_bf.T @ scaled_bf + RIDGE * np.eye(len(mean_f))
        mean = float(reward_b.mean())
        return cls(mean, mean_f, spread_f, np.linalg.solve(held_ff, scaled_bf.T @ (reward_b - mean)))

    def of(self, features_bf: np.ndarray) -> np.ndarray:
        """expected_b [B]"""
        expected_b: np.ndarray = self.mean + (features_bf - self.mean_f) / self.spread_f @ self.coefficient_f
        return expected_b


@dataclass(frozen=True)
class Tuned:
    """A network that was fine-tuned, and how that went."""

    network: ActorCritic
    expectation: Expectation
    steps: int
    kl: float
    """Mean distance from its parent over the decisions, nats."""
    ended_by: str
    """`steps`, `kl` (the next look was beyond the bound, so that those steps were taken back), or `time`."""
    mean_weight: float
    """Mean clipped importance weight under the parent: 1 where the parent decided."""
    explained: float
    """Share of the variance of the rewards that was to be expected."""


def fine_tune(
    parent: ActorCritic,
    lessons: Lessons,
    settings: FineTuneSettings,
    is_time_up: Callable[[], bool] = lambda: False,
) -> Tuned:
    """Learn from these decisions. The same lessons and seed give the same weights, unless the time is up.

    Policy gradient for single decisions, off-policy: log pi(node) * min(most_weight, pi / decider's) * advantage, less
    the distance KL(parent || pi). Source of the clipped weights: Espeholt et al. 2018, arXiv 1802.01561.
    """
    with one_thread():
        head = _Head(parent, lessons)
        features_bf, reward_b = head.features(lessons), lessons.reward_b
        expectation = Expectation.fitted(features_bf, reward_b)
        surprise_b = reward_b - expectation.of(features_bf)
        network = copy.deepcopy(parent)
        learner = _Learner(network, head, surprise_b / max(float(surprise_b.std()), 1e-9), settings)
        steps, kl, ended_by = learner.run(is_time_up)
        weight_b = importance(head.log_prob(head.parent_log_prob_bn), head.behaviour_b, settings.most_weight)
        explained = 1 - float(surprise_b.var()) / max(float(reward_b.var()), 1e-18)
        return Tuned(network, expectation, steps, kl, ended_by, float(weight_b.mean()), explained)


def estimated_gain(
    candidate: ActorCritic, parent: ActorCritic, lessons: Lessons, flow_b: np.ndarray, expectation: Expectation
) -> tuple[float, float]:
    """What a decision of the candidate would have been worth more than one of the parent, and half its 95 % interval.

    From decisions that neither learnt from: what came out better than expected counts as much more as the candidate was
    likelier to choose it than the parent. The decisions of one workflow, flow_b [B] int64, hang together.
    """
    with one_thread(), torch.no_grad():
        heads = [_Head(network, lessons) for network in (candidate, parent)]
        weights = [
            importance(head.log_prob(head.parent_log_prob_bn), head.behaviour_b, MOST_ESTIMATE_WEIGHT) for head in heads
        ]
        surprise_b = lessons.reward_b - expectation.of(heads[1].features(lessons))
    gain_b = (weights[0] - weights[1]).double().numpy() * surprise_b
    mean = float(gain_b.mean())
    error_f = np.bincount(flow_b, gain_b - mean)
    flows = len(error_f)
    return mean, 1.96 * float(np.sqrt(flows / (flows - 1) * (error_f**2).sum())) / len(gain_b)


def importance(log_prob_b: Tensor, behaviour_b: Tensor, most: float) -> Tensor:
    """How much likelier each choice is than it was when it was made, at most `most`: weight_b [B]."""
    return (log_prob_b - behaviour_b).exp().clamp(max=most)


def log_probs(network: ActorCritic, lessons: Lessons) -> np.ndarray:
    """log_prob_b [B] float64 that the network makes each choice, at the temperature at which it was made."""
    with one_thread(), torch.no_grad():
        head = _Head(network, lessons)
        found: np.ndarray = head.log_prob(head.parent_log_prob_bn).double().numpy()
        return found


class _Head:
    """The lessons as the last layer sees them. H: hidden units."""

    def __init__(self, parent: ActorCritic, lessons: Lessons) -> None:
        head = parent.head
        with torch.no_grad():
            self.hidden_bh = head.mix(torch.from_numpy(lessons.context_bc))
        self.pair_bpn = torch.from_numpy(lessons.pair_bpn)
        self.mask_bn = torch.from_numpy(lessons.mask_bn)
        self.node_b1 = torch.from_numpy(lessons.node_b)[:, None]
        self.temperature_b1 = torch.from_numpy(lessons.temperature_b).float()[:, None]
        self.behaviour_b = torch.from_numpy(lessons.log_prob_b).float()
        with torch.no_grad():
            self.parent_log_prob_bn = self.answers(head.weight.weight, head.weight.bias, slice(None))

    def answers(self, weight_ph: Tensor, bias_p: Tensor, rows: slice | Tensor) -> Tensor:
        """log_prob_bn [B, N] of these rows."""
        weight_bp = self.hidden_bh[rows] @ weight_ph.T + bias_p
        logits_bn = (weight_bp.unsqueeze(1) @ self.pair_bpn[rows]).squeeze(1) / self.temperature_b1[rows]
        return torch.log_softmax(logits_bn.masked_fill(~self.mask_bn[rows], CLOSED), dim=1)

    def log_prob(self, log_prob_bn: Tensor, rows: slice | Tensor = slice(None)) -> Tensor:
        """log_prob_b [B] of what was chosen."""
        return log_prob_bn.gather(1, self.node_b1[rows]).squeeze(1)

    def distance(self, log_prob_bn: Tensor, rows: slice | Tensor) -> Tensor:
        """KL(parent || policy), kl_b [B]: 0 of closed nodes, whose probability is 0."""
        parent_bn = self.parent_log_prob_bn[rows]
        return (parent_bn.exp() * (parent_bn - log_prob_bn)).sum(dim=1)

    def features(self, lessons: Lessons) -> np.ndarray:
        """What is known before a choice, features_bf: the context, and what the parent's choice is like on average."""
        chance_bn1 = self.parent_log_prob_bn.exp().unsqueeze(2)
        expected_bp = (self.pair_bpn @ chance_bn1).squeeze(2)
        return np.concatenate([lessons.context_bc, expected_bp.numpy()], axis=1).astype(np.float64)


class _Learner:
    """One fine-tuning under way."""

    def __init__(self, network: ActorCritic, head: _Head, advantage_b: np.ndarray, settings: FineTuneSettings) -> None:
        self._network = network
        self._head = head
        self._count = len(advantage_b)
        self._advantage_b = torch.from_numpy(advantage_b).float()
        self._settings = settings
        self._layer = network.head.weight
        self._has_say_h = (self._layer.weight != 0).any(dim=0)
        self._optimiser = torch.optim.Adam(self._layer.parameters(), lr=settings.learning_rate, eps=1e-5)
        self._rng = np.random.default_rng((settings.seed, 7))

    def run(self, is_time_up: Callable[[], bool]) -> tuple[int, float, str]:
        """Take steps until the last one, the bound, or the end of the time; as `Tuned` tells."""
        settings, kept, kept_steps, kl, ended_by = self._settings, self._state(), 0, 0.0, "steps"
        for step in range(1, settings.steps + 1):
            if is_time_up():
                ended_by = "time"
                break
            self._step(1 - (step - 1) / settings.steps)
            if step % settings.check_every == 0 or step == settings.steps:
                now = self._kl()
                if not now <= settings.most_kl:
                    ended_by = "kl"
                    break
                kept, kept_steps, kl = self._state(), step, now
        self._layer.load_state_dict(kept)
        self._network.eval()
        return kept_steps, kl, ended_by

    def _step(self, left: float) -> None:
        settings, head, layer = self._settings, self._head, self._layer
        for group in self._optimiser.param_groups:
            group["lr"] = settings.learning_rate * left
        rows = torch.from_numpy(self._rng.choice(self._count, min(settings.batch, self._count), replace=False))
        log_prob_bn = head.answers(layer.weight, layer.bias, rows)
        chosen_b = head.log_prob(log_prob_bn, rows)
        weight_b = importance(chosen_b.detach(), head.behaviour_b[rows], settings.most_weight)
        gain_b = weight_b * self._advantage_b[rows] * chosen_b
        loss = (settings.kl_weight * head.distance(log_prob_bn, rows) - gain_b).mean()
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        assert layer.weight.grad is not None
        layer.weight.grad[:, ~self._has_say_h] = 0
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        self._optimiser.step()

    @torch.no_grad()
    def _kl(self) -> float:
        everything = slice(None)
        log_prob_bn = self._head.answers(self._layer.weight, self._layer.bias, everything)
        return float(self._head.distance(log_prob_bn, everything).mean())

    def _state(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._layer.state_dict().items()}
