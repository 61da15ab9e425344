"""A network and its weights, exported once for all tests: an export takes seconds."""

from __future__ import annotations

import pytest

from policy.network import ActorCritic
from policy.weight_set import WeightSet
from tests.unit.trainer.test_network import a_network
from trainer.export import Origin, exported


@pytest.fixture(scope="session")
def network() -> ActorCritic:
    return a_network()


@pytest.fixture(scope="session")
def weights(network: ActorCritic) -> WeightSet:
    return exported(network, Origin("headrace train clone", 3, parent="0123456789ab"))
