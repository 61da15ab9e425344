"""The log line: one JSON object for one event."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
NOISY = ("faust", "mode", "aiokafka", "headrace.librdkafka", "asyncio", "kafka")
QUIET_S = 10.0
MOST_KNOWN = 1000


class JsonFormatter(logging.Formatter):
    """`{"at": …, "level": …, "event": "noun.verb", …fields}`"""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in STANDARD}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class Repeats(logging.Filter):
    """Lets a line of the libraries pass once in `QUIET_S`: while a broker is away they write a hundred a second."""

    def __init__(self) -> None:
        super().__init__()
        self._passed_s: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is none of theirs, or another one than those just before."""
        if not record.name.startswith(NOISY):
            return True
        line = (record.name, str(record.msg))
        if record.created - self._passed_s.get(line, -QUIET_S) < QUIET_S:
            return False
        if len(self._passed_s) >= MOST_KNOWN:
            self._passed_s.clear()
        self._passed_s[line] = record.created
        return True


def set_up(level: str = "INFO") -> None:
    """Log JSON lines to stderr; of the libraries only warnings, and those not over and over."""
    handler = logging.StreamHandler()
    handler.addFilter(Repeats())
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
