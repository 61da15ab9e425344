"""What attempts cost, by kind: cpu, gpu, storage.

A node's price is shared out among the attempts that hold something on it, by the largest share of it that each takes;
an idle node costs nobody anything. It is the rule of the simulated cluster (`policy.physics.bill`).
"""

from __future__ import annotations

from dataclasses import dataclass

from policy.ledger import AttemptKey
from policy.resources import MILLI, RESOURCES, Request
from schemas.errors import InvalidConfiguration

CPU, MEMORY, GPU, GPU_MEMORY = range(len(RESOURCES))
HOUR_MS = 3_600_000
GIB = 2**30

Costs = tuple[float, float, float]
"""cpu, gpu, storage; in the currency of the nodes' prices"""


@dataclass(frozen=True, kw_only=True)
class CostSettings:
    """How what an attempt costs is split."""

    gpu_in_cores: float = 8.0
    """So many cores are worth one GPU: a node's price goes to cpu (with memory) and gpu in this proportion."""
    storage_per_gib: float = 0.01
    """Price of each GiB that a task hands on to its children."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1e6:
                raise InvalidConfiguration(f"cost.{name}", f"{value} is out of range", "give 0 to 1,000,000")


def split(machine_cost: float, request: Request, bytes_handed_on: int, settings: CostSettings) -> Costs:
    """An attempt's share of its node's price by what it takes there, and its storage."""
    cores, gpus = request[CPU] / MILLI, request[GPU] * settings.gpu_in_cores
    of_gpu = machine_cost * gpus / (cores + gpus) if gpus else 0.0
    return machine_cost - of_gpu, of_gpu, bytes_handed_on / GIB * settings.storage_per_gib


@dataclass(slots=True)
class _Account:
    """One node: what one share of it has cost since the beginning, and the shares that are held."""

    per_share: float = 0.0
    shares: float = 0.0
    holders: int = 0
    until_ms: int = 0


class Bill:
    """Follows who holds what on which node, in event time."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._held: dict[AttemptKey, tuple[str, float, float]] = {}
        """Attempt -> its node, its share, the node's `per_share` when it came."""

    def begin(self, key: AttemptKey, node_id: str, share: float, price_per_hour: float, at_ms: int) -> None:
        """The attempt holds this share of the node from now on."""
        account = self._accounts.setdefault(node_id, _Account())
        self._pass(account, price_per_hour, at_ms)
        account.shares += share
        account.holders += 1
        self._held[key] = (node_id, share, account.per_share)

    def end(self, key: AttemptKey, price_per_hour: float, at_ms: int) -> float:
        """The attempt is over; returns what it has cost."""
        node_id, share, before = self._held.pop(key)
        account = self._accounts[node_id]
        self._pass(account, price_per_hour, at_ms)
        account.shares -= share
        account.holders -= 1
        if not account.holders:
            del self._accounts[node_id]
        return share * (account.per_share - before)

    def expected(self, key: AttemptKey, price_per_hour: float, seconds: float) -> float:
        """What the attempt will cost in so many seconds, if nobody comes to its node or leaves it."""
        node_id, share, _ = self._held[key]
        return seconds / 3600 * price_per_hour * share / self._accounts[node_id].shares if share else 0.0

    def _pass(self, account: _Account, price_per_hour: float, at_ms: int) -> None:
        """Share out what the node has cost since the last time."""
        passed_ms = max(0, at_ms - account.until_ms)
        if account.shares > 0:
            account.per_share += passed_ms / HOUR_MS * price_per_hour / account.shares
        account.until_ms = max(account.until_ms, at_ms)
