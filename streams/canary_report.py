"""How far a canary is, for people."""

from __future__ import annotations

import json
import time

from policy.canary_stages import CanarySettings, Progress
from schemas.records import Control
from streams.model_report import when


def report(pool: str, record: Control | None, settings: CanarySettings) -> str:
    """What its controller wrote last, in lines."""
    if record is None or "progress" not in record.arguments:
        return f"pool {pool} has had no canary; begin one with 'headrace canary start VERSION'"
    progress = Progress.of(record)
    lines = [
        f"canary {progress.version} of pool {pool}: {progress.phase}",
        f"  begun {when(progress.began_ms)} by {progress.who}{f' ({progress.why})' if progress.why else ''}",
    ]
    if progress.is_running:
        held_s = (int(1000 * time.time()) - progress.since_ms) / 1000
        lines += [
            f"  stage {progress.stage + 1} of {len(settings.shares)}: {100 * progress.share:g} % of the eligible "
            f"workflows, for {held_s:.0f} of {settings.hold_s:g} s, {progress.decisions} decisions "
            f"(at least {settings.least_decisions})",
            f"  written by its controller {when(record.event_time_ms)}",
        ]
    else:
        lines.append(f"  cause: {progress.cause}")
    numbers = json.loads(record.arguments.get("numbers", "{}"))
    for name, ratio in json.loads(record.arguments.get("evidence", "{}")).items():
        lines.append(f"  {name}: evidence {ratio:.2g} (1 drives it back); {numbers.get(name, '')}")
    lines += [f"  {when(at_ms)} {what}" for at_ms, what in progress.events]
    return "\n".join(lines)
