"""Settings and ports of the embedded broker; the broker itself runs in the integration tests."""

from __future__ import annotations

import socket

import pytest

from schemas.errors import BrokerError, InvalidConfiguration
from streams.broker import PORTS, BrokerSettings, EmbeddedBroker, check_free, free_port


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"port": -1}, "broker.port"),
        ({"port": 65_536}, "broker.port"),
        ({"heap_mib": 64}, "broker.heap_mib"),
        ({"start_timeout_s": 0.0}, "broker.start_timeout_s"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidConfiguration, match=field):
        BrokerSettings(**settings)


def test_a_broker_that_is_not_started_has_no_address() -> None:
    broker = EmbeddedBroker(BrokerSettings(port=20_001))

    with pytest.raises(BrokerError, match="not started"):
        _ = broker.bootstrap_servers


def test_stopping_a_broker_that_is_not_started_does_nothing() -> None:
    broker = EmbeddedBroker()

    broker.stop()

    with pytest.raises(BrokerError, match="not started"):
        _ = broker.pid


def test_a_free_port_lies_below_those_of_outgoing_connections() -> None:
    port = free_port()

    assert port in PORTS
    check_free(port)


def test_a_port_that_is_listened_on_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        with pytest.raises(BrokerError, match=f"port {port} of 127.0.0.1"):
            check_free(port)
