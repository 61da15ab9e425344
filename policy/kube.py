"""The default scheduler of Kubernetes, v1.36, as a policy: what its default profile gives each node for a task.

Every score is a whole number from 0 to 100 before its weight, and every division truncates, as in the original.
The formulas were read from `pkg/scheduler/framework/plugins`; the file is named at each.
"""

from __future__ import annotations

import math

import numpy as np

from policy.marks import Marks, marks, tolerates
from policy.observation import Observation
from policy.resources import MILLI
from schemas.records import Spread, Task

MOST = 100
WEIGHTS = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "PodTopologySpread": 2,
    "NodeResourcesFit": 1,
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
}
"""Of the plugins that our nodes and tasks give something to look at."""
UNSCORED = -1.0
"""Of nodes beyond the sample: below every total."""

SCORED = slice(0, 2)
"""The resources that are scored: cpu, memory. GPUs are not."""
ASSUMED_R = np.array([MILLI // 10, 200 * 2**20])
"""What a task is taken to use of a resource that it asks nothing of: 0.1 cores, 200 MiB."""
HOSTNAME = "kubernetes.io/hostname"
"""The label of which every node has a value of its own, whether its specification says so or not."""
MIB = 2**20
IMAGE_LEAST_BYTES, IMAGE_MOST_BYTES = 23 * MIB, 1000 * MIB

SAMPLE_LEAST = 100


def kube_default(seen: Observation) -> np.ndarray:
    """scores_bn [B, N] float32: the weighted sum of the plugins' scores, of the nodes that are looked at."""
    scores_bn = np.full(seen.mask_bn.shape, UNSCORED, np.float32)
    for row in range(len(seen.tasks)):
        scored_n = sample(seen.mask_bn[row], int(seen.state.nodes.is_present_n.sum()), seen.state.placed + row)
        total_n = sum(plugin_scores(seen, row, scored_n).values(), np.zeros(len(scored_n), np.int64))
        scores_bn[row, scored_n] = total_n[scored_n]
    return scores_bn


def most_allocated(seen: Observation) -> np.ndarray:
    """scores_bn [B, N] float32: how full cpu and memory of the node are with the task, 0 to 100.

    Source: `noderesources/most_allocated.go`.
    """
    scores_bn = np.zeros(seen.mask_bn.shape, np.float32)
    for row in range(len(seen.tasks)):
        capacity_rn = seen.state.nodes.capacity_rn[SCORED]
        used_rn = np.minimum(_assumed_use(seen, row), capacity_rn)
        scores_bn[row] = _mean_of_present(used_rn * MOST // np.maximum(capacity_rn, 1), capacity_rn)
    return scores_bn


def plugin_scores(seen: Observation, row: int, scored_n: np.ndarray) -> dict[str, np.ndarray]:
    """The weighted scores [N] int64 of each plugin that does not skip the task; they count where `scored_n` holds."""
    task, known = seen.tasks[row].task, seen.state.nodes.derived(marks)
    scores = {
        "TaintToleration": _taints(known, task, scored_n),
        "NodeResourcesFit": _least_allocated(seen, row),
        "ImageLocality": _image(known, task.image, seen.state.nodes.is_present_n),
    }
    if task.preferences:
        scores["NodeAffinity"] = _preferences(known, task, scored_n)
    if task.spread:
        scores["PodTopologySpread"] = _spread(seen, row, known, scored_n)
    if seen.request_br[row, SCORED].any():
        scores["NodeResourcesBalancedAllocation"] = _balance(seen, row)
    return {name: WEIGHTS[name] * scores_n for name, scores_n in scores.items()}


def sample(mask_n: np.ndarray, nodes: int, cycle: int) -> np.ndarray:
    """The feasible nodes that are scored [N] bool: of 100 nodes and more a part, which goes round from cycle to cycle.

    Source: `schedule_one.go`, numFeasibleNodesToFind. There the search goes on where the last one stopped; here it
    starts where it would if every one of the `cycle` searches before had found all nodes feasible.
    """
    if nodes < SAMPLE_LEAST:
        return mask_n
    count = max(nodes * max(5, 50 - nodes // 125) // 100, SAMPLE_LEAST)
    start = cycle * count % len(mask_n)
    feasible = np.flatnonzero(mask_n)
    first = int(np.searchsorted(feasible, start))
    sampled_n = np.zeros(len(mask_n), bool)
    sampled_n[np.roll(feasible, -first)[:count]] = True
    return sampled_n


def _assumed_use(seen: Observation, row: int) -> np.ndarray:
    """What the nodes' attempts and the task take, with an amount assumed where nothing is asked for [cpu+memory, N]."""
    state = seen.state
    asked_r = seen.request_br[row, SCORED]
    held_rn = state.nodes.capacity_rn[SCORED] - seen.free_rn[SCORED]
    assumed_rn = state.ledger.unasked_rn[SCORED] * ASSUMED_R[:, None]
    return held_rn + assumed_rn + np.where(asked_r == 0, ASSUMED_R, asked_r)[:, None]


def _mean_of_present(score_rn: np.ndarray, capacity_rn: np.ndarray) -> np.ndarray:
    """The mean [N] over the resources that the node has at all."""
    has_rn = capacity_rn > 0
    return (score_rn * has_rn).sum(axis=0) // np.maximum(has_rn.sum(axis=0), 1)


def _least_allocated(seen: Observation, row: int) -> np.ndarray:
    """How empty cpu and memory of the node stay with the task [N]. Source: `noderesources/least_allocated.go`."""
    capacity_rn = seen.state.nodes.capacity_rn[SCORED]
    left_rn = np.maximum(capacity_rn - _assumed_use(seen, row), 0)
    return _mean_of_present(left_rn * MOST // np.maximum(capacity_rn, 1), capacity_rn)


def _balance(seen: Observation, row: int) -> np.ndarray:
    """Whether the task brings the used shares of cpu and memory closer together [N], 75: neither nor.

    Source: `noderesources/balanced_allocation.go`; what is really asked for counts, without assumed amounts.
    """
    capacity_rn = seen.state.nodes.capacity_rn[SCORED]
    before_rn = capacity_rn - seen.free_rn[SCORED]
    after_rn = before_rn + seen.request_br[row, SCORED, None]
    return 50 + (50 + _evenness(after_rn, capacity_rn) - _evenness(before_rn, capacity_rn)) // 2


def _evenness(used_rn: np.ndarray, capacity_rn: np.ndarray) -> np.ndarray:
    share_rn = np.minimum(used_rn / np.maximum(capacity_rn, 1), 1.0)
    deviation_n = np.where((capacity_rn > 0).all(axis=0), np.abs(share_rn[0] - share_rn[1]) / 2, 0.0)
    return ((1 - deviation_n) * MOST).astype(np.int64)


def _taints(known: Marks, task: Task, scored_n: np.ndarray) -> np.ndarray:
    """Fewer soft taints that the task does not tolerate are better [N]. Source: `tainttoleration`."""
    count_n = np.zeros(len(scored_n), np.int64)
    for taint, columns in known.soft_taints.items():
        if not any(tolerates(toleration, taint) for toleration in task.tolerations):
            count_n[columns] += 1
    return MOST - _scaled(count_n, scored_n)


def _preferences(known: Marks, task: Task, scored_n: np.ndarray) -> np.ndarray:
    """The weights of the wishes that the node fulfils [N]. Source: `nodeaffinity`."""
    weight_n = np.zeros(len(scored_n), np.int64)
    for wish in task.preferences:
        for value in set(wish.values):
            weight_n[known.labelled(wish.key, value)] += wish.weight
    return _scaled(weight_n, scored_n)


def _scaled(raw_n: np.ndarray, scored_n: np.ndarray) -> np.ndarray:
    """Scaled so that the best scored node has 100; all 0 where it has 0. Source: `helper/normalize_score.go`."""
    best = int(raw_n[scored_n].max(initial=0))
    return raw_n * MOST // best if best else np.zeros_like(raw_n)


def _image(known: Marks, image: str, present_n: np.ndarray) -> np.ndarray:
    """How large the image is that the node need not fetch, times the share of nodes with it [N].

    Source: `imagelocality/image_locality.go`.
    """
    saved_n = np.zeros(len(present_n))
    name = image if ":" in image.rpartition("/")[2] else f"{image}:latest"
    if name in known.images:
        columns, size_bytes = known.images[name]
        share = present_n[columns].sum() / max(present_n.sum(), 1)
        saved_n[columns] = size_bytes * share
    saved_n = np.clip(saved_n.astype(np.int64), IMAGE_LEAST_BYTES, IMAGE_MOST_BYTES)
    return (saved_n - IMAGE_LEAST_BYTES) * MOST // (IMAGE_MOST_BYTES - IMAGE_LEAST_BYTES)


def _spread(seen: Observation, row: int, known: Marks, scored_n: np.ndarray) -> np.ndarray:
    """Fewer attempts of the same workflow around the node are better [N]; nodes without the labels get 0.

    Source: `podtopologyspread/scoring.go`.
    """
    task, present_n = seen.tasks[row].task, seen.state.nodes.is_present_n
    domain_cn = [_domains(known, spread.topology_key, len(scored_n)) for spread in task.spread]
    has_n = np.all([domain_n >= 0 for domain_n in domain_cn], axis=0)
    counted_n = has_n & present_n & _selected(known, task, len(scored_n))
    compared_n = scored_n & has_n
    raw_n = np.zeros(len(scored_n))
    for spread, domain_n in zip(task.spread, domain_cn, strict=True):
        raw_n += _crowding(spread, domain_n, seen.siblings_bn[row] * counted_n, compared_n)
    raw_n = np.floor(raw_n + 0.5).astype(np.int64)
    most, least = int(raw_n[compared_n].max(initial=0)), int(raw_n[compared_n].min(initial=2**31))
    score_n = (most + least - raw_n) * MOST // most if most else np.full_like(raw_n, MOST)
    return np.where(has_n, score_n, 0)


def _domains(known: Marks, key: str, nodes: int) -> np.ndarray:
    """A number for each value of the label [N], -1 where the node lacks it."""
    if key == HOSTNAME:
        return np.arange(nodes)
    domain_n = np.full(nodes, -1)
    for number, columns in enumerate(known.labels.get(key, {}).values()):
        domain_n[columns] = number
    return domain_n


def _selected(known: Marks, task: Task, nodes: int) -> np.ndarray:
    """The nodes that have every label that the task asks for [N] bool."""
    selected_n = np.ones(nodes, bool)
    for key, value in task.node_selector.items():
        has_n = np.zeros(nodes, bool)
        has_n[known.labelled(key, value)] = True
        selected_n &= has_n
    return selected_n


def _crowding(spread: Spread, domain_n: np.ndarray, siblings_n: np.ndarray, compared_n: np.ndarray) -> np.ndarray:
    """Attempts in the node's domain, weighted by how many domains there are [N] float64."""
    domains = len(np.unique(domain_n[compared_n]))
    siblings_d = np.bincount(np.maximum(domain_n, 0), siblings_n)
    return siblings_d[domain_n] * math.log(domains + 2) + (spread.max_skew - 1)
