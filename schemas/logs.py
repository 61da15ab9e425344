"""The log line: one JSON object for one event."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
NOISY = ("faust", "mode", "aiokafka", "headrace.librdkafka", "asyncio", "kafka")


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


def set_up(level: str = "INFO") -> None:
    """Log JSON lines to stderr; of the libraries only warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
