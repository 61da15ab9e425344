"""A folder of traces, made by hand: a few rows of each source, some of them odd."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

JOBS_HEADER = "job_name,task_name,instance_num,status,start_time,end_time,duration,plan_cpu,plan_mem"
JOBS = (
    "j_late,M1,1,Terminated,900,910,10,50,0.5",
    "j_dag,M1,2,Terminated,100,110,10,100,1",
    "j_dag,R2_1_Stg3,1,Terminated,110,115,5.5,50,0.5",
    "j_dag,J4_1_2,30,Terminated,115,120,5,200,0.5",
    "j_failed,M1,1,Failed,1,2,1,100,0.5",
    "j_failed,R2_1,1,Terminated,1,2,1,100,0.5",
    "j_waiting,M1,,Waiting,0,0,1,100,0.5",
    f"j_cut,{'J30_' + '_'.join(str(i) for i in range(1, 30))[:46]},1,Terminated,5,6,1,100,0.5",
    "j_named,task_x,1,Terminated,5,6,1,100,0.5",
    "j_unplanned,M1,1,Terminated,5,6,1,,",
    "j_lost,R2_1,1,Terminated,5,6,1,100,0.5",
    "j_circle,M1_2,1,Terminated,5,6,1,100,0.5",
    "j_circle,M2_1,1,Terminated,5,6,1,100,0.5",
)
PODS_HEADER = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
)
PODS = (
    "late,4000,1024,0,0,,LS,Running,500,700,600",
    "share,6000,2048,1,460,,LS,Running,10,130,30",
    "whole,8000,4096,2,1000,T4|P100,BE,Failed,20,50,20",
    "pending,8000,4096,1,1000,,BE,Pending,20,50,",
    "brief,8000,4096,1,1000,,BE,Running,20,50,50",
)
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,262144,0,\nn1,96000,393216,8,G2\nn2,16000,122880,2,P100\n"
QUERIES = """
graphs:
  - name: Q1
    graph:
      - {name: 0, children: [1, 2]}
      - {name: 1, children: [2]}
      - {name: 2}
"""
PROFILES = {
    "tpch_q1_50g_maxCores_50": [
        {"stage_id": 0, "stage_name": "a", "num_tasks": 100, "average_runtime_ms": 2000},
        {"stage_id": 1, "stage_name": "a", "num_tasks": 5, "average_runtime_ms": 1000},
        {"stage_id": 2, "stage_name": "a", "num_tasks": 1, "average_runtime_ms": 500.5},
    ],
    "tpch_q1_50g_maxCores_75": [],
}


def execution(name: str = "montage", parents: dict[str, list[str]] | None = None) -> dict[str, object]:
    """An execution of WfFormat 1.5: each task's parents, all of 10 s."""
    known = parents or {"a": [], "b": ["a"]}
    children = {task: [child for child, its in known.items() if task in its] for task in known}
    return {
        "name": name,
        "schemaVersion": "1.5",
        "workflow": {
            "specification": {
                "tasks": [
                    {"id": task, "name": task, "parents": its, "children": children[task]}
                    for task, its in known.items()
                ],
                "files": [],
            },
            "execution": {"tasks": [{"id": task, "runtimeInSeconds": 10} for task in known]},
        },
    }


def write_traces(folder: Path) -> Path:
    """Write the folder; each file can then be changed."""
    for name in ("wfinstances", "wfinstances-old-schema", "tpch-dags", "alibaba-dags-2018", "alibaba-gpu-2023"):
        (folder / name).mkdir(parents=True)
    write_json(folder / "wfinstances" / "montage-001.json", execution())
    write_json(folder / "wfinstances-old-schema" / "montage-001.v1.4.json", execution())
    write_json(folder / "wfinstances-old-schema" / "circle.v1.2.json", execution("c", {"a": ["b"], "b": ["a"]}))
    (folder / "tpch-dags" / "queries.yaml").write_text(QUERIES)
    write_json(folder / "tpch-dags" / "few_profiles.json", PROFILES)
    write_rows(jobs_path(folder), JOBS_HEADER, JOBS)
    write_rows(pods_path(folder), PODS_HEADER, PODS)
    (folder / "alibaba-gpu-2023" / "openb_node_list_all_node.csv").write_text(NODES)
    return folder


def jobs_path(folder: Path) -> Path:
    return folder / "alibaba-dags-2018" / "batch_task_6600jobs.csv.gz"


def pods_path(folder: Path) -> Path:
    return folder / "alibaba-gpu-2023" / "openb_pod_list_default.csv"


def write_rows(path: Path, header: str, rows: tuple[str, ...]) -> None:
    text = "\n".join((header, *rows)) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def write_json(path: Path, document: object) -> None:
    path.write_text(json.dumps(document))
