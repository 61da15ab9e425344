"""A whole headrace on one machine: broker, topics, worker, simulated cluster."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from schemas.errors import BrokerError, HeadraceError
from streams.broker import EmbeddedBroker, free_port
from streams.config import Settings
from streams.kafka import KafkaSettings
from streams.supervisor import Supervised
from streams.topic_admin import create_topics

READY_WITHIN_S = 90.0

Progress = Callable[[str], None]


class Installation:
    """Starts what is not there, in order, and stops it in the other. Use it in a `with` block."""

    def __init__(
        self,
        settings: Settings,
        log_dir: Path | None = None,
        progress: Progress = lambda _: None,
        *,
        records_rewards: bool = False,
        watches_canaries: bool = False,
    ) -> None:
        self.settings = settings
        self.records_rewards = records_rewards
        self.watches_canaries = watches_canaries
        self.recorder: Supervised | None = None
        self.controller: Supervised | None = None
        self.kafka = settings.kafka
        self.worker: Supervised | None = None
        self.cluster: Supervised | None = None
        self.port = settings.worker.port or free_port()
        self._broker: EmbeddedBroker | None = None
        self._log_dir = log_dir
        self._progress = progress

    def __enter__(self) -> Installation:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def environment(self) -> Mapping[str, str]:
        """What tells a headrace command of this installation's broker."""
        return {
            "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": self.kafka.bootstrap_servers,
            "HEADRACE_WORKER__PORT": str(self.port),
            "HEADRACE_WORKER__INSTANCE": self.settings.worker.instance or "worker-0",
        }

    def _start(self) -> None:
        if not self.kafka.bootstrap_servers:
            self._progress("starting Apache Kafka")
            self._broker = EmbeddedBroker(self.settings.broker)
            self._broker.start()
            self.kafka = KafkaSettings(
                bootstrap_servers=self._broker.bootstrap_servers,
                schema_registry_url=self.kafka.schema_registry_url,
                linger_ms=self.kafka.linger_ms,
            )
        self._progress("creating topics")
        create_topics(self.kafka, self.settings.topics)
        self._progress("starting worker and cluster")
        self.worker = self._child("worker", [])
        self.cluster = self._child("cluster", [])
        self._wait_until_ready()
        if self.records_rewards:
            self.recorder = self._child("reward", ["--record"])
        if self.watches_canaries:
            self.controller = self._child("canary", ["run"])

    def _child(self, name: str, arguments: list[str]) -> Supervised:
        log_file = self._log_dir / f"{name}.log" if self._log_dir else None
        return Supervised(name, [name, *arguments], self.environment, log_file)

    def _wait_until_ready(self) -> None:
        """Until the worker decides, and knows nodes of the pool."""
        self._wait_for("/readyz", lambda answer: True)
        known = re.compile(
            rb'^headrace_nodes\{pool="%b"\} [1-9]' % re.escape(self.settings.pool.encode()), re.MULTILINE
        )
        self._wait_for("/metrics", lambda answer: known.search(answer) is not None)

    def _wait_for(self, path: str, is_good: Callable[[bytes], bool]) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        problem = "it does not answer"
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2.0) as answer:
                    if is_good(answer.read()):
                        return
                    problem = f"it knows no node of the pool '{self.settings.pool}'"
            except urllib.error.HTTPError as error:
                problem = str(json.loads(error.read()).get("problems"))
            except (urllib.error.URLError, OSError):
                if self.worker is not None and self.worker.restarts > 2:
                    break
            time.sleep(0.05)
        where = f"; see {self._log_dir / 'worker.log'}" if self._log_dir else ""
        raise HeadraceError(f"the worker is not ready: {problem}{where}")

    def _stop(self) -> None:
        for child in (self.controller, self.recorder, self.cluster, self.worker):
            if child is not None:
                child.stop()
        if self._broker is not None:
            self._broker.stop()


def require_broker(settings: Settings) -> None:
    """Raises BrokerError where no broker is named."""
    if not settings.kafka.bootstrap_servers:
        raise BrokerError(
            "no broker is named; set HEADRACE_KAFKA__BOOTSTRAP_SERVERS (host:port), for instance to what "
            "'headrace up' or 'headrace broker' prints"
        )
