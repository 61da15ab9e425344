"""Apache Kafka in a container, for tests."""

from __future__ import annotations

import time
from uuid import uuid4

import docker
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from docker.errors import DockerException
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient

from streams.broker import free_port, has_answers

IMAGE = "apache/kafka:4.4.0"
START_S = 120.0
ANSWER_S = 10.0
POLL_S = 0.1
LOG_LINES = 20


class CannotStart(Exception):
    """Why there is no Kafka in a container."""


class KafkaContainer(DockerContainer):
    """One Kafka node. `start` returns when records go through it.

    The port is the same inside and outside: a broker hands its clients the address that they come back to.
    """

    def __init__(self) -> None:
        """Raises CannotStart where no engine answers, or the image cannot be had."""
        require_image(IMAGE)
        super().__init__(IMAGE)
        engine_host = self.get_docker_client().host()
        is_here = engine_host in ("localhost", "127.0.0.1")
        host, port = "127.0.0.1" if is_here else engine_host, free_port()
        self.bootstrap_servers = f"{host}:{port}"
        self.ports[f"{port}/tcp"] = ("127.0.0.1", port) if is_here else port
        self.with_envs(
            KAFKA_NODE_ID="1",
            KAFKA_PROCESS_ROLES="broker,controller",
            KAFKA_LISTENERS=f"PLAINTEXT://:{port},CONTROLLER://:9093",
            KAFKA_ADVERTISED_LISTENERS=f"PLAINTEXT://{self.bootstrap_servers}",
            KAFKA_CONTROLLER_LISTENER_NAMES="CONTROLLER",
            KAFKA_CONTROLLER_QUORUM_VOTERS="1@localhost:9093",
            KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR="1",
            KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS="1",
            KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR="1",
            KAFKA_TRANSACTION_STATE_LOG_MIN_ISR="1",
            KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS="0",
            KAFKA_AUTO_CREATE_TOPICS_ENABLE="false",
            KAFKA_HEAP_OPTS="-Xms256m -Xmx256m",
        )

    def start(self) -> KafkaContainer:
        """Raises CannotStart."""
        do_without_reaper_where_its_image_is_missing()
        deadline_s = time.monotonic() + START_S
        try:
            super().start()
            self._await_answers(deadline_s)
            round_trip(self.bootstrap_servers)
        except BaseException as error:
            log = self._end_of_log()
            self.stop()
            if isinstance(error, DockerException | KafkaException):
                raise CannotStart(f"{IMAGE} does not start: {error}{log}") from error
            raise
        return self

    def _await_answers(self, deadline_s: float) -> None:
        client = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        while not has_answers(client):
            self.reload()
            if self.status != "running":
                raise CannotStart(f"{IMAGE} ended while it started{self._end_of_log()}")
            if time.monotonic() > deadline_s:
                raise CannotStart(f"{IMAGE} does not answer after {START_S:g} s{self._end_of_log()}")
            time.sleep(POLL_S)

    def _end_of_log(self) -> str:
        if self.status == "not_started":
            return ""
        output, _ = self.get_logs()
        return "".join(f"\n  {line}" for line in output.decode(errors="replace").splitlines()[-LOG_LINES:])


def round_trip(bootstrap_servers: str) -> None:
    """One record out, and back as a member of a group. Raises KafkaException."""
    name = f"probe-{uuid4().hex}"
    client = AdminClient({"bootstrap.servers": bootstrap_servers})
    client.create_topics([NewTopic(name, 1, 1)])[name].result(ANSWER_S)
    producer = Producer({"bootstrap.servers": bootstrap_servers, "message.timeout.ms": int(ANSWER_S * 1000)})
    producer.produce(name, b"probe")
    producer.flush(ANSWER_S)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": name, "auto.offset.reset": "earliest"},
    )
    try:
        consumer.subscribe([name])
        message = consumer.poll(ANSWER_S)
        if message is None or message.error():
            raise KafkaException(message.error() if message else KafkaError(KafkaError._TIMED_OUT))
        consumer.commit(offsets=[TopicPartition(name, 0, 1)], asynchronous=False)
    finally:
        consumer.close()
    client.delete_topics([name])[name].result(ANSWER_S)


def require_image(image: str) -> None:
    """Raises CannotStart where no engine answers, or the image is neither there nor to be had."""
    try:
        engine = DockerClient(timeout=30)
        engine.client.ping()
    except (DockerException, OSError) as error:
        raise CannotStart("no Docker engine answers") from error
    if not has_image(engine.client, image):
        raise CannotStart(f"the image {image} is not there, and cannot be pulled")


def has_image(engine: docker.DockerClient, image: str) -> bool:
    """Whether the engine has the image, or can pull it."""
    for look in (engine.images.get, engine.images.pull):
        try:
            look(image)
        except (DockerException, OSError):
            continue
        return True
    return False


def do_without_reaper_where_its_image_is_missing() -> None:
    """testcontainers removes the containers of a killed run with one of its own, whose image not everybody can pull."""
    if not testcontainers_config.ryuk_disabled:
        engine = DockerClient(timeout=30)
        testcontainers_config.ryuk_disabled = not has_image(engine.client, testcontainers_config.ryuk_image)
