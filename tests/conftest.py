"""One Kafka broker a run, and topics of its own for each test."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from schemas.codec import Codec
from schemas.topics import TopicSettings
from streams.broker import EmbeddedBroker
from streams.config import PREFIX
from streams.kafka import KafkaSettings, Publisher, admin
from streams.topic_admin import create_topics
from tests.command_line import CommandLine
from tests.kafka_container import IMAGE, CannotStart, KafkaContainer

CHOICES = ("auto", "container", "embedded")
BOOTSTRAP = "HEADRACE_TEST_BOOTSTRAP"
DELETE_S = 30.0
USED = pytest.StashKey[str]()
"""The broker of this run, in words."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --kafka."""
    parser.addoption(
        "--kafka",
        choices=CHOICES,
        default="auto",
        help=f"Kafka of the tests: {IMAGE} in a container, or the embedded broker; auto: the one that {BOOTSTRAP} "
        "names, else a container where that is possible, else the embedded one",
    )


def pytest_configure() -> None:
    """A run that is told to end takes its broker down, as with Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that asks for the broker needs no mark to say so; it comes before -m selects."""
    for item in items:
        if "kafka" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kafka)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which broker the results are about."""
    terminalreporter.write_line(f"kafka: {config.stash.get(USED, 'none was started')}")


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> Iterator[KafkaSettings]:
    """The broker of this run."""
    with started_kafka(pytestconfig.getoption("--kafka")) as (bootstrap_servers, words):
        pytestconfig.stash[USED] = words
        yield KafkaSettings(bootstrap_servers=bootstrap_servers)


@contextmanager
def started_kafka(choice: str) -> Iterator[tuple[str, str]]:
    """The address of a broker, and what it is in words. Raises CannotStart or BrokerError."""
    given = os.environ.get(BOOTSTRAP)
    if choice == "auto" and given:
        yield given, f"{given}, from {BOOTSTRAP}"
        return
    why_none = ""
    if choice != "embedded":
        try:
            container = KafkaContainer().start()
        except CannotStart as problem:
            if choice == "container":
                raise
            why_none = f"; no container: {str(problem).splitlines()[0]}"
        else:
            try:
                yield container.bootstrap_servers, f"{IMAGE} in a container"
            finally:
                container.stop()
            return
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers, f"embedded broker{why_none}"


@contextmanager
def names_of_its_own(kafka: KafkaSettings) -> Iterator[TopicSettings]:
    """Names that no topic has yet; those that have them after the block are deleted."""
    settings = TopicSettings(prefix=f"test-{uuid4().hex[:12]}.")

    yield settings

    client = admin(kafka)
    made = [name for name in client.list_topics(timeout=DELETE_S).topics if name.startswith(settings.prefix)]
    for deleted in (client.delete_topics(made) if made else {}).values():
        deleted.result(DELETE_S)


@pytest.fixture
def unmade_topics(kafka: KafkaSettings) -> Iterator[TopicSettings]:
    """Names that no topic has yet, for one test."""
    with names_of_its_own(kafka) as settings:
        yield settings


@pytest.fixture(scope="module")
def module_topics(kafka: KafkaSettings) -> Iterator[TopicSettings]:
    """The whole catalogue under names of this module's own."""
    with names_of_its_own(kafka) as settings:
        create_topics(kafka, settings)
        yield settings


@pytest.fixture
def topics(kafka: KafkaSettings, unmade_topics: TopicSettings) -> TopicSettings:
    """The whole catalogue under names of this test's own."""
    create_topics(kafka, unmade_topics)
    return unmade_topics


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of the machine that runs the tests have no say in the test."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)


@pytest.fixture
def command(
    no_variables: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[CommandLine]:
    """The command line, without settings from variables; its log ends with the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    yield CommandLine(monkeypatch, capsys)

    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def at_broker(
    command: CommandLine, kafka: KafkaSettings, topics: TopicSettings, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """The command line with the settings of the broker and of this test's topics."""
    monkeypatch.setenv("HEADRACE_KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    monkeypatch.setenv("HEADRACE_TOPICS__PREFIX", topics.prefix)
    monkeypatch.setenv("COLUMNS", "200")
    return command


@pytest.fixture
def publisher(kafka: KafkaSettings, topics: TopicSettings) -> Iterator[Publisher]:
    """Sends to this test's topics."""
    made = Publisher(kafka, topics, Codec())
    yield made
    made.close()
