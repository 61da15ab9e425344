"""Submit a workflow, and see where its tasks go.

headrace up --time-scale 600        # in another terminal; it prints the line to export
export HEADRACE_KAFKA__BOOTSTRAP_SERVERS=localhost:9092
python examples/submit_workflow.py
"""

from __future__ import annotations

import time

from schemas.records import Edge, Env, Task, WorkflowClass, WorkflowSubmitted
from streams.client import Client
from streams.config import load

GIB = 2**30
TASKS = (
    Task("extract", runtime_s=60, cpu=2, memory_bytes=4 * GIB, priority=5),
    Task("clean", runtime_s=120, cpu=4, memory_bytes=8 * GIB, parents=(Edge("extract", bytes=GIB),)),
    Task("count", runtime_s=30, cpu=1, memory_bytes=GIB, parents=(Edge("extract", bytes=GIB),)),
    Task("report", runtime_s=20, cpu=1, memory_bytes=GIB, parents=(Edge("clean"), Edge("count"))),
)


def main() -> None:
    """Submit the tasks as one workflow, and print each placement until all of them have one."""
    settings = load()
    with Client(settings.kafka, settings.pool, settings.topics) as client:
        now_ms = int(time.time() * 1000)
        workflow_id = f"report-{now_ms}"  # an id is run once: submitting it again changes nothing
        client.submit(
            WorkflowSubmitted(
                client.pool, workflow_id, now_ms, "report", WorkflowClass.ETL_BATCH, Env.DEV, TASKS, deadline_s=3600
            )
        )
        waiting = {task.task_id for task in TASKS}
        for placement in client.placements(timeout_s=60):
            if placement.workflow_id == workflow_id:
                print(f"{placement.task_id} -> {placement.node_id}, done in about {placement.expected_s:.0f} s")
                waiting.discard(placement.task_id)
                if not waiting:
                    return
    raise SystemExit(f"not placed: {', '.join(sorted(waiting))}; is a worker running, are there nodes?")


if __name__ == "__main__":
    main()
