"""The 95th percentile of what came in the last days, in little memory.

Values are counted in buckets whose edges grow by a constant factor, hour by hour: a percentile is at most `ERROR` of
its value off, and the window's edge at most an hour. Source: DDSketch, Masson, Rim, Lee 2019, doi
10.14778/3352063.3352135, with a window of counts around it.
"""

from __future__ import annotations

import math
from collections import Counter, deque

ERROR = 0.01
"""Largest relative error of a percentile."""
GROWTH = (1 + ERROR) / (1 - ERROR)
LEAST, MOST = 1e-9, 1e12
"""Values are taken for at least and at most so much: there are never more than 2,400 buckets."""
HOUR_MS = 3_600_000


class RollingPercentile:
    """Values with their event times; those older than the window are forgotten when a newer one comes."""

    def __init__(self, hours: int) -> None:
        self._hours = hours
        self._counts: Counter[int] = Counter()
        self._by_hour: deque[tuple[int, Counter[int]]] = deque()
        """Hour -> counts, oldest first."""
        self._values = 0
        self._known: dict[float, float] = {}
        """Percentiles that hold until something is added or forgotten."""

    def __len__(self) -> int:
        return self._values

    def add(self, value: float, at_ms: int) -> None:
        """Take a value in; one that is older than the window has no effect."""
        hour = at_ms // HOUR_MS
        self.forget(at_ms)
        if self._by_hour and hour <= self._by_hour[-1][0] - self._hours:
            return
        bucket = math.ceil(math.log(min(max(value, LEAST), MOST), GROWTH))
        self._of_hour(hour)[bucket] += 1
        self._counts[bucket] += 1
        self._values += 1
        self._known.clear()

    def forget(self, now_ms: int) -> None:
        """Drop the values that are older than the window at this event time."""
        oldest = now_ms // HOUR_MS - self._hours
        while self._by_hour and self._by_hour[0][0] <= oldest:
            counts = self._by_hour.popleft()[1]
            self._counts -= counts
            self._values -= counts.total()
            self._known.clear()

    def percentile(self, share: float = 0.95) -> float | None:
        """The smallest value that at least this share of the values do not exceed; None where there are none."""
        if not self._values:
            return None
        if share not in self._known:
            self._known[share] = 2 * GROWTH ** self._bucket(math.ceil(share * self._values)) / (GROWTH + 1)
        return self._known[share]

    def _bucket(self, rank: int) -> int:
        """The bucket of the value of this rank, from 1."""
        for bucket in sorted(self._counts):
            rank -= self._counts[bucket]
            if rank <= 0:
                break
        return bucket

    def _of_hour(self, hour: int) -> Counter[int]:
        """The counts of this hour, in its place among the others."""
        at = len(self._by_hour)
        while at and self._by_hour[at - 1][0] > hour:
            at -= 1
        if at and self._by_hour[at - 1][0] == hour:
            return self._by_hour[at - 1][1]
        counts: Counter[int] = Counter()
        self._by_hour.insert(at, (hour, counts))
        return counts
