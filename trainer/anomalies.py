"""Anomalies that were recorded on real machines, as slow spells of simulated nodes."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from policy.physics import Machines
from schemas.errors import InvalidConfiguration
from trainer.scenarios import Course

FILE = "alibaba-2018/machine_usage.csv.gz"
"""Without header: machine, seconds, share of the cpu in use in percent, and more that is not read."""
UNUSUAL = 95
"""Percentile of a machine's own cpu use above which it is unusually busy."""
JOINED_S = 180.0
"""Samples of one spell are at most so far apart."""
MOST = 16
"""Spells of a node in one episode."""


@dataclass(frozen=True)
class RecordedCourse(Course):
    """A course whose nodes are slow when machines of a recording were unusually busy."""

    slow_ms_nk: np.ndarray

    def machines(self) -> Machines:
        """The nodes as they are at the beginning."""
        return super().machines()._replace(slow_ms_nk=self.slow_ms_nk)


def recordings(folder: Path) -> list[np.ndarray]:
    """Of each recorded machine, its unusual spells [K, 2]: from and to, seconds of the recording.

    folder  holds FILE. Raises InvalidConfiguration.
    """
    path, samples = folder / FILE, dict[str, list[tuple[float, float]]]()
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
            for row in csv.reader(lines):
                samples.setdefault(row[0], []).append((float(row[1]), float(row[2])))
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise InvalidConfiguration(
            "learn.traces", f"{path} cannot be read: {error}", f"give a folder that holds {FILE}, or none"
        ) from error
    found = [spells(np.array(sorted(of_machine))) for of_machine in samples.values()]
    return [spells_k2 for spells_k2 in found if len(spells_k2)]


def spells(sample_i2: np.ndarray) -> np.ndarray:
    """spells_k2 [K, 2]: when the use was unusual; sample_i2 [I, 2] seconds and use, in order."""
    at_s = sample_i2[sample_i2[:, 1] > np.percentile(sample_i2[:, 1], UNUSUAL), 0]
    if not len(at_s):
        return np.zeros((0, 2))
    begins = np.concatenate([[True], np.diff(at_s) > JOINED_S])
    ends = np.concatenate([begins[1:], [True]])
    return np.stack([at_s[begins], at_s[ends] + JOINED_S / 3], axis=1)


def with_anomalies(course: Course, recorded: Sequence[np.ndarray], rng: np.random.Generator) -> RecordedCourse:
    """The course, each of its nodes as slow as some machine, from some time of its recording on."""
    slow_ms_nk = np.zeros((len(course.specs), MOST, 2), np.int64)
    for slow_ms_k in slow_ms_nk:
        spells_k2 = recorded[int(rng.integers(len(recorded)))]
        begin = int(rng.integers(len(spells_k2)))
        chosen_k2 = spells_k2[begin : begin + MOST]
        lead_s = float(rng.exponential(1800))
        from_start_s = chosen_k2 - chosen_k2[0, 0] + lead_s
        slow_ms_k[: len(chosen_k2)] = course.scenario.start_ms + np.round(1000 * from_start_s)
    return RecordedCourse(*(getattr(course, field.name) for field in fields(Course)), slow_ms_nk)
