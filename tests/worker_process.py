"""A worker as its users run it: a process of its own, seen through its port, its log and its exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from schemas.topics import TopicSettings
from streams.broker import free_port
from streams.kafka import KafkaSettings
from tests.eventually import eventually

ANSWER_S = 2.0
READY_S = 60.0
END_S = 40.0


class WorkerProcess:
    """`headrace worker` on these topics, deciding by HEFT unless `settings` (`worker__instance="a"`) say otherwise."""

    def __init__(self, kafka: KafkaSettings, topics: TopicSettings, folder: Path, **settings: object) -> None:
        self._folder = folder
        self._settings = {
            "kafka__bootstrap_servers": kafka.bootstrap_servers,
            "topics__prefix": topics.prefix,
            "topics__partitions": topics.partitions,
            "worker__group": f"{topics.prefix}workers",
            "policy__name": "heft",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._lives = 0
        self.port = 0

    def __enter__(self) -> WorkerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        print(self.log)  # pytest shows it where the test failed

    def start(self) -> None:
        """Start it, and again after its end; returns at once."""
        self.kill()
        self._lives += 1
        self.port = free_port()
        settings = self._settings | {"worker__port": self.port}
        environment = os.environ | {f"HEADRACE_{name.upper()}": str(value) for name, value in settings.items()}
        with self._log_file.open("wb") as log:
            command = [sys.executable, "-m", "headrace", "worker"]
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def start_and_wait(self) -> None:
        """Start it, and wait until it decides."""
        self.start()
        self.wait_until_ready()

    def wait_until_ready(self, within_s: float = READY_S) -> None:
        """Until it owns what it was assigned."""
        eventually(lambda: self._must_run() and self.is_ready, f"a ready worker\n{self.log}", within_s)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._running.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, where it still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self, within_s: float = END_S) -> int:
        """Wait for its end; returns the exit code."""
        return self._running.wait(within_s)

    def terminate(self) -> int:
        """SIGTERM, and wait; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.end()

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def has_ended(self) -> bool:
        return self._running.poll() is not None

    @property
    def is_ready(self) -> bool:
        return self._get("/readyz") is not None

    @property
    def log(self) -> str:
        """What it has printed in this life."""
        return self._log_file.read_text(errors="replace")

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The log lines of this event, in this life."""
        lines = [json.loads(line) for line in self.log.splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels; 0 where it has none."""
        families = text_string_to_metric_families((self._get("/metrics") or b"").decode())
        samples = [s for family in families for s in family.samples if s.name == name]
        return sum(s.value for s in samples if labels.items() <= s.labels.items())

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def _log_file(self) -> Path:
        return self._folder / f"worker-{id(self)}-{self._lives}.log"

    def _must_run(self) -> bool:
        assert not self.has_ended, f"the worker ended with {self._running.returncode}\n{self.log}"
        return True

    def _get(self, path: str) -> bytes | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=ANSWER_S) as answer:
                return bytes(answer.read())
        except (urllib.error.URLError, OSError):
            return None
