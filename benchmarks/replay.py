"""How fast a history is read, folded and decided again, beside a bare reader of the same files.

One JSON line each: records, node samples and decisions a second of an archive of 1,000 nodes; and the most memory that
Python held while it was played, for a history and for one of twice its length, with the work that was live at once.
"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.history import record_history
from benchmarks.line import report
from policy.constraints import Constraints
from policy.decide import DecideSettings
from policy.heuristics import HEURISTICS
from policy.state import StateSettings
from replay.archive import ArchiveSource, archive
from replay.fidelity import Verifier
from replay.player import Player, Range
from schemas.codec import Codec
from schemas.records import METRICS, NodeMetrics
from schemas.steps import FOLD_ORDER
from schemas.topics import DECISIONS, NODE_METRICS, partition_of
from streams.kafka import decoded
from trainer.workloads import WorkloadSettings, example_nodes, random_workload

RUNS = 3
NODES = 1000
WORKFLOWS = 300
POOL = "default"
NUMBER = partition_of(POOL, 4)
READ = (*FOLD_ORDER, DECISIONS)


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        sources = [made(Path(folder) / str(count), count) for count in (WORKFLOWS, 2 * WORKFLOWS)]
        source = sources[0]
        counts = {topic: sum(1 for _ in _stored(source, topic)) for topic in READ}
        samples = sum(_samples(source))
        decisions = player(source)
        for _ in decisions.play(Range()):
            pass
        bare = [timed(lambda: bare_read(source)) for _ in range(RUNS)]
        fold = [timed(lambda: folded(source)) for _ in range(RUNS)]
        again = [timed(lambda: verified(source)) for _ in range(RUNS)]
        total, made_again = sum(counts.values()), decisions.progress.decisions
        facts = {"nodes": NODES, "records": total, "decisions": made_again, "counterpart": "files read and decoded"}
        ratio = float(np.median(bare) / np.median(fold))
        report("replay fold", "records/s", [total / s for s in fold], **facts, bare=total / min(bare), of_bare=ratio)
        report("replay fold of samples", "node samples/s", [samples / s for s in fold], metrics=len(METRICS))
        report("replay and decide again", "decisions/s", [made_again / s for s in again], policy="heft")
        peaks = [peak_mib(lambda each=each: folded(each)) for each in sources]  # type: ignore[misc]
        live = [most_live(each) for each in sources]
        facts = {"live_workflows": live[0], "of_twice_the_length": peaks[1], "live_workflows_of_that": live[1]}
        report("replay memory", "MiB", [peaks[0]], **facts)


def made(folder: Path, workflows: int) -> ArchiveSource:
    """An archive of a run."""
    specs = example_nodes(NODES)
    settings = WorkloadSettings(workflows=workflows, tasks=(20, 40))
    work = random_workload(np.random.default_rng(0), specs, settings, POOL, 1_700_000_000_000)
    recorded = record_history(specs, work, HEURISTICS["heft"], pool=POOL)
    archive(recorded, Codec(), folder, [NUMBER], Range(), StateSettings())
    return ArchiveSource(folder, "headrace.")


def player(source: ArchiveSource) -> Player:
    return Player(source, Codec(), NUMBER, StateSettings())


def _stored(source: ArchiveSource, topic: object) -> Iterator[object]:
    yield from source.read(topic, NUMBER, *source.bounds(topic, NUMBER))  # type: ignore[arg-type]


def _samples(source: ArchiveSource) -> Iterator[int]:
    for stored in source.read(NODE_METRICS, NUMBER, *source.bounds(NODE_METRICS, NUMBER)):
        yield len(decoded(stored, Codec(), NodeMetrics).nodes)


def most_live(source: ArchiveSource) -> int:
    """Workflows that were live at once, which is what memory grows with."""
    return max(len(state.workflows) for m in player(source).play(Range()) for state in m.partition.pools.values())


def bare_read(source: ArchiveSource) -> None:
    """What it takes to have the records, and do nothing with them."""
    codec = Codec()
    for topic in READ:
        for stored in source.read(topic, NUMBER, *source.bounds(topic, NUMBER)):
            decoded(stored, codec, topic.record)


def folded(source: ArchiveSource) -> None:
    """Every state that there was, without a decision made again."""
    for _ in player(source).play(Range()):
        pass


def verified(source: ArchiveSource) -> None:
    """Every decision made again, and compared."""
    found = Verifier(HEURISTICS["heft"], Constraints(()), DecideSettings()).verify(player(source), Range())
    assert found.is_exact, found.differences


def timed(work: Callable[[], None]) -> float:
    """CPU time of the process, seconds."""
    started = time.process_time()
    work()
    return time.process_time() - started


def peak_mib(work: Callable[[], None]) -> float:
    """The most that Python objects and arrays took at once."""
    tracemalloc.start()
    work()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / 2**20
