"""The embedded broker from start to stop, and whatever else may end it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from schemas.errors import BrokerError
from streams.broker import BrokerSettings, EmbeddedBroker
from tests.processes import comes_true, is_running

pytestmark = pytest.mark.kafka

ANSWER_S = 20.0
END_S = 40.0  # the first broker on a machine takes longer to end: it writes the class archive
LARGE_BYTES = 15_000_000

OWNER = """
import signal, sys, threading
from pathlib import Path
from streams.broker import BrokerSettings, EmbeddedBroker

# A shell without job control has its background jobs ignore the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
directory = Path(sys.argv[1]) if sys.argv[1] else None
broker = EmbeddedBroker(BrokerSettings(data_dir=directory))
starting = threading.Thread(target=broker.start)
starting.start()
starting.join()
say = f"{broker.pid} {broker.bootstrap_servers} {broker.data_dir}"
while True:
    try:  # the first line too: whoever reads it may interrupt at once
        print(say, flush=True)
        sys.stdin.read()
        break
    except KeyboardInterrupt:
        say = "interrupted"
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as started:
        yield started


class Owner:
    """A process of its own that runs a broker, started in a thread that has ended since."""

    def __init__(self, directory: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(directory or "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        pid, self.bootstrap_servers, data_dir = self.line().split()
        self.broker_pid, self.data_dir = int(pid), Path(data_dir)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.kill()
    comes_true(lambda: not is_running(owner.broker_pid), within_s=END_S)


def create_topic(bootstrap_servers: str, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for created in admin.create_topics([NewTopic(topic, 1, 1, config=config)]).values():
        created.result(ANSWER_S)


def produce(bootstrap_servers: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "message.max.bytes": LARGE_BYTES + 1_000})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(ANSWER_S) == 0


def consume(bootstrap_servers: str, topic: str, count: int) -> list[bytes]:
    """The first records of the topic, read as a member of a consumer group."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"reader-of-{topic}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
        }
    )
    values: list[bytes] = []

    def all_are_here() -> bool:
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None
            values.append(message.value())
        return len(values) == count

    consumer.subscribe([topic])
    assert comes_true(all_are_here, within_s=ANSWER_S)
    consumer.close()
    return values


@pytest.mark.parametrize("compression", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_records_come_back_as_they_went(broker: EmbeddedBroker, compression: str) -> None:
    topic = f"compression-{compression}"
    large = os.urandom(LARGE_BYTES)

    create_topic(broker.bootstrap_servers, topic, **{"compression.type": compression})
    produce(broker.bootstrap_servers, topic, b"small", large)

    assert consume(broker.bootstrap_servers, topic, count=2) == [b"small", large]


def test_a_topic_that_nobody_made_stays_unknown(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})

    asked = admin.list_topics("nobody-made-this", timeout=ANSWER_S).topics["nobody-made-this"]

    assert asked.error is not None
    assert "nobody-made-this" not in admin.list_topics(timeout=ANSWER_S).topics


def test_the_broker_logs(broker: EmbeddedBroker) -> None:
    log = (broker.data_dir / "broker.log").read_text()

    assert "Kafka Server started" in log


def test_a_directory_in_use_is_refused_and_its_broker_goes_on(broker: EmbeddedBroker) -> None:
    second = EmbeddedBroker(BrokerSettings(data_dir=broker.data_dir))

    with pytest.raises(BrokerError, match="another embedded Kafka is running"):
        second.start()

    assert AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=ANSWER_S).brokers


def test_a_port_in_use_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        broker = EmbeddedBroker(BrokerSettings(data_dir=tmp_path / "kafka", port=port))

        with pytest.raises(BrokerError, match=f"port {port}"):
            broker.start()

    with pytest.raises(BrokerError, match="not started"):
        _ = broker.pid


def test_stop_leaves_no_process_and_no_temporary_directory() -> None:
    broker = EmbeddedBroker()
    broker.start()
    pid, directory = broker.pid, broker.data_dir

    broker.stop()

    assert not is_running(pid)
    assert not directory.exists()


def test_a_kept_directory_keeps_its_records_over_a_stop_and_a_kill(tmp_path: Path) -> None:
    # A comma separates directories in Kafka's own settings, and Java reads file names in the encoding of the locale.
    settings = BrokerSettings(data_dir=tmp_path / "Zürich, 2nd try")

    with EmbeddedBroker(settings) as broker:
        create_topic(broker.bootstrap_servers, "kept")
        produce(broker.bootstrap_servers, "kept", b"before the stop")
    with EmbeddedBroker(settings) as broker:
        produce(broker.bootstrap_servers, "kept", b"before the kill")
        os.kill(broker.pid, signal.SIGKILL)
    with EmbeddedBroker(settings) as broker:
        values = consume(broker.bootstrap_servers, "kept", count=2)

    assert values == [b"before the stop", b"before the kill"]


def test_a_broker_that_ends_while_starting_tells_why(tmp_path: Path) -> None:
    settings = BrokerSettings(data_dir=tmp_path)
    with EmbeddedBroker(settings):
        pass
    properties = tmp_path / "kafka" / "meta.properties"
    properties.write_text(properties.read_text().replace("node.id=1", "node.id=7"))

    with pytest.raises(BrokerError, match=r"(?s)ended while it started.*Stored node id 7"):
        EmbeddedBroker(settings).start()


def test_a_broker_that_takes_too_long_is_given_up() -> None:
    broker = EmbeddedBroker(BrokerSettings(start_timeout_s=0.01))

    with pytest.raises(BrokerError):
        broker.start()

    with pytest.raises(BrokerError, match="not started"):
        _ = broker.pid


def test_killing_the_owner_ends_the_broker_and_removes_its_directory(owner: Owner) -> None:
    assert is_running(owner.broker_pid)

    owner.kill()

    assert comes_true(lambda: not is_running(owner.broker_pid), within_s=END_S)
    assert comes_true(lambda: not owner.data_dir.exists(), within_s=ANSWER_S)


def test_an_interrupt_from_the_terminal_is_for_the_owner_alone(owner: Owner) -> None:
    os.killpg(owner.process.pid, signal.SIGINT)

    assert owner.line() == "interrupted\n"
    assert AdminClient({"bootstrap.servers": owner.bootstrap_servers}).list_topics(timeout=ANSWER_S).brokers


def test_a_directory_can_be_used_again_right_after_its_owner_was_killed(tmp_path: Path) -> None:
    owner = Owner(tmp_path / "kafka")
    create_topic(owner.bootstrap_servers, "kept")

    owner.kill()

    with EmbeddedBroker(BrokerSettings(data_dir=tmp_path / "kafka")) as broker:
        topics = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=ANSWER_S).topics
    assert "kept" in topics
