"""The last five minutes of a pool's node samples, by event time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from schemas.records import METRICS

STEP_MS = 15_000
STEPS = 20
"""A window is STEPS steps of STEP_MS."""

FIRST_ROOM = 16
NEVER = -1


class Windows:
    """A ring of steps for every node. Of several samples in one step the newest written counts."""

    def __init__(self) -> None:
        self._ring_tnm = np.full((STEPS, FIRST_ROOM, len(METRICS)), np.nan, np.float32)
        self._latest_nm = np.full((FIRST_ROOM, len(METRICS)), np.nan, np.float32)
        self._last_step_n = np.full(FIRST_ROOM, NEVER, np.int64)
        self.step = NEVER
        """The newest step that any node has a sample of."""
        self.late_samples = 0
        """Samples that came after their step had left the window."""

    def write(self, columns: np.ndarray, values_nm: np.ndarray, at_ms: int) -> None:
        """Take in one sample of each of these nodes.

        columns   [n]     distinct node columns
        values_nm [n, M]  float32, NaN where nothing was measured
        """
        if len(columns) == 0:
            return
        self._make_room(int(columns.max()) + 1)
        step = at_ms // STEP_MS
        if step <= self.step - STEPS:
            self.late_samples += len(columns)
            return
        gap_n = step - self._last_step_n[columns]
        for back in range(min(int(gap_n.max()), STEPS)):  # the steps since a node's last sample hold old values
            self._ring_tnm[(step - back) % STEPS, columns[gap_n > back]] = np.nan
        self._ring_tnm[step % STEPS, columns] = values_nm
        self._last_step_n[columns] = np.maximum(self._last_step_n[columns], step)
        newest = columns[gap_n >= 0]
        fresh_nm = values_nm[gap_n >= 0]
        self._latest_nm[newest] = np.where(np.isnan(fresh_nm), self._latest_nm[newest], fresh_nm)
        self.step = max(self.step, step)

    def forget(self, column: int) -> None:
        """Drop what is known of a node."""
        self._make_room(column + 1)
        self._ring_tnm[:, column] = np.nan
        self._latest_nm[column] = np.nan
        self._last_step_n[column] = NEVER

    def latest(self, nodes: int) -> np.ndarray:
        """The last measured value of each metric: latest_nm [N, M], NaN where there is none."""
        self._make_room(nodes)
        return self._latest_nm[:nodes]

    def read(self, nodes: int) -> np.ndarray:
        """The window that ends with the newest step: window_tnm [T, N, M], oldest first, NaN: nothing was measured."""
        self._make_room(nodes)
        steps = np.arange(self.step - STEPS + 1, self.step + 1)
        window_tnm = self._ring_tnm[steps % STEPS, :nodes]
        window_tnm[steps[:, None] > self._last_step_n[None, :nodes]] = np.nan
        return window_tnm

    def saved(self, nodes: int) -> dict[str, np.ndarray]:
        """All that is remembered of the first `nodes` nodes, for `restore`."""
        self._make_room(nodes)
        return {
            "ring_tnm": self._ring_tnm[:, :nodes],
            "latest_nm": self._latest_nm[:nodes],
            "last_step_n": self._last_step_n[:nodes],
            "step": np.array(self.step),
            "late_samples": np.array(self.late_samples),
        }

    def restore(self, saved: Mapping[str, np.ndarray]) -> None:
        """Become what `saved` was taken from."""
        self._ring_tnm, self._latest_nm = saved["ring_tnm"], saved["latest_nm"]
        self._last_step_n = saved["last_step_n"]
        self.step, self.late_samples = int(saved["step"]), int(saved["late_samples"])

    def _make_room(self, nodes: int) -> None:
        room = len(self._last_step_n)
        if nodes <= room:
            return
        grown = max(nodes, 2 * room) - room
        self._ring_tnm = np.pad(self._ring_tnm, ((0, 0), (0, grown), (0, 0)), constant_values=np.nan)
        self._latest_nm = np.pad(self._latest_nm, ((0, grown), (0, 0)), constant_values=np.nan)
        self._last_step_n = np.pad(self._last_step_n, (0, grown), constant_values=NEVER)


def runs(columns: Sequence[int], steps: Sequence[int]) -> Iterator[slice]:
    """Cut samples, in the order in which they came, where the step changes or a node comes again."""
    start, seen = 0, set[int]()
    for at, (column, step) in enumerate(zip(columns, steps, strict=True)):
        if step != steps[start] or column in seen:
            yield slice(start, at)
            start, seen = at, set()
        seen.add(column)
    if columns:
        yield slice(start, len(columns))
