"""Latency spikes and spot nodes: each does what its settings say, and leaves everything else as it was."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from policy.simulator import SimulatedCluster, SimulatorSettings, is_spot, machines_of, with_spot
from schemas.errors import InvalidConfiguration
from schemas.records import METRICS, EventKind
from trainer.workloads import example_nodes

HOUR_MS = 3_600_000
SPECS = example_nodes(20)
USUAL = SimulatorSettings(node_losses_per_hour=0.5, slow_spells_per_hour=1.0, seed=3)
SPIKES = replace(USUAL, latency_spikes_per_hour=6.0)
SPOT = replace(USUAL, spot_share=0.5, spot_interruptions_per_hour=4.0)
LATENCY = METRICS.index("network_latency_p99_s")


def lost(settings: SimulatorSettings, specs=SPECS, hours: int = 20) -> list[tuple[int, str, str]]:
    """When which node was lost, and why."""
    events = SimulatedCluster("p", specs, settings, 0).advance(hours * HOUR_MS)
    return [(e.event_time_ms, e.node_id, e.reason or "") for e in events if e.kind == EventKind.NODE_LOST]


def differing(one: SimulatorSettings, other: SimulatorSettings) -> set[str]:
    """The arrays of the machines that the settings make different."""
    a, b = (machines_of(SPECS, settings, 0, 4) for settings in (one, other))
    return {name for name in a._fields if not np.array_equal(getattr(a, name), getattr(b, name))}


def test_spikes_change_the_links_and_nothing_else():
    assert differing(USUAL, SPIKES) == {"spike_ms_nk", "latency_factor"}
    assert lost(SPIKES) == lost(USUAL)


def test_settings_without_effect_change_nothing():
    idle = replace(USUAL, latency_spike_s=9.0, spot_price_factor=0.1, spot_repair_s=9.0)

    assert differing(USUAL, idle) == set()
    assert with_spot(SPECS, idle) == tuple(SPECS)


def test_the_measured_latency_of_a_node_is_so_many_times_as_high_in_a_spike():
    begin_ms, end_ms = machines_of(SPECS[:1], SPIKES, 0, 4).spike_ms_nk[0, 0].tolist()

    def latency(settings: SimulatorSettings, at_ms: int) -> float:
        cluster = SimulatedCluster("p", SPECS[:1], replace(settings, node_losses_per_hour=0.0), 0)
        list(cluster.advance(at_ms))
        values = np.frombuffer(cluster.sample().values, "<f4")
        return float(values[LATENCY])

    assert latency(SPIKES, begin_ms) == pytest.approx(SPIKES.latency_factor * latency(USUAL, begin_ms))
    assert latency(SPIKES, end_ms - 1) == pytest.approx(SPIKES.latency_factor * latency(USUAL, end_ms - 1))
    assert latency(SPIKES, end_ms) == latency(USUAL, end_ms)


def test_spikes_come_as_often_and_last_as_long_as_they_should():
    spike_ms_nk = machines_of(example_nodes(200), SPIKES, 0, 4).spike_ms_nk

    lasted_s = (spike_ms_nk[..., 1] - spike_ms_nk[..., 0]).mean() / 1000
    apart_s = (spike_ms_nk[:, 1:, 0] - spike_ms_nk[:, :-1, 1]).mean() / 1000

    assert lasted_s == pytest.approx(SPIKES.latency_spike_s, rel=0.05)
    assert apart_s == pytest.approx(3600 / SPIKES.latency_spikes_per_hour, rel=0.05)


def test_a_share_of_the_nodes_is_spot_labelled_and_cheaper():
    nodes = with_spot(SPECS, SPOT)

    spot = [(new, old) for new, old in zip(nodes, SPECS, strict=True) if is_spot(new)]
    assert len(spot) == 10
    assert all(new.price_per_hour == pytest.approx(0.35 * old.price_per_hour) for new, old in spot)
    assert all(new.labels == {**old.labels, "capacity": "spot"} for new, old in spot)
    kept = [(new, old) for new, old in zip(nodes, SPECS, strict=True) if not is_spot(new)]
    assert all(new == old for new, old in kept)


def test_spot_nodes_stay_what_they_are_when_they_are_asked_for_again():
    nodes = with_spot(SPECS, SPOT)

    assert with_spot(nodes, SPOT) == nodes
    assert with_spot(nodes, replace(SPOT, seed=99)) == nodes


def test_a_larger_share_adds_spot_nodes():
    few, many = (
        {spec.node_id for spec in with_spot(SPECS, replace(SPOT, spot_share=share)) if is_spot(spec)}
        for share in (0.25, 0.6)
    )

    assert (len(few), len(many)) == (5, 12)
    assert few < many


def test_only_spot_nodes_are_taken_back_and_their_events_say_so():
    spot = {spec.node_id for spec in with_spot(SPECS, SPOT) if is_spot(spec)}

    taken = [node for _, node, reason in lost(SPOT) if reason == "spot interruption"]

    assert set(taken) == spot
    expected = 4.0 * 20 * len(spot)  # some less: nodes that are gone are not taken back
    assert 0.4 * expected < len(taken) < expected
    others = [row for row in lost(SPOT) if row[1] not in spot]
    assert others == [row for row in lost(USUAL) if row[1] not in spot]
    assert {reason for _, _, reason in others} == {"simulated loss"}


def test_nodes_that_are_labelled_spot_by_their_owner_keep_their_price_and_are_taken_back():
    labelled = replace(SPECS[0], labels={"capacity": "spot"})
    settings = SimulatorSettings(spot_interruptions_per_hour=2.0)

    assert with_spot([labelled, *SPECS[1:]], settings)[0] == labelled
    assert {node for _, node, _ in lost(settings, (labelled, *SPECS[1:]))} == {labelled.node_id}


def test_the_same_seed_takes_back_the_same_nodes_at_the_same_times():
    assert lost(SPOT) == lost(SPOT)
    assert lost(SPOT) != lost(replace(SPOT, seed=4))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("latency_spikes_per_hour", -1.0),
        ("latency_spike_s", float("nan")),
        ("latency_factor", 1001.0),
        ("spot_share", 1.5),
        ("spot_price_factor", -0.1),
        ("spot_interruptions_per_hour", 4000.0),
        ("spot_repair_s", -1.0),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(InvalidConfiguration, match=rf"cluster\.simulator\.{name}"):
        SimulatorSettings(**{name: value})


def test_all_new_trouble_is_off_unless_asked_for():
    usual = {field.name: field.default for field in fields(SimulatorSettings)}

    assert [usual[n] for n in ("latency_spikes_per_hour", "spot_share", "spot_interruptions_per_hour")] == [0, 0, 0]
