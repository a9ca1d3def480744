"""What `--json` prints: jobs and nodes as Slurm 22.05 writes them.

Times are in seconds since the epoch, 0 = not yet; limits are in minutes, memory is in MiB.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from fairlog.compat.slurm import jobs
from fairlog.compat.slurm.jobs import SlurmJob
from fairlog.compat.slurm.nodes import SlurmNode, gres, list_of
from fairlog.compat.slurm.tables import CLUSTER, PARTITION, QOS

_FLAGS = {"drng": (["DRAIN"], "mixed"), "drain": (["DRAIN"], "idle"), "mix": ([], "mixed"), "alloc": ([], "allocated")}

_TEXTS = (
    "admin_comment batch_features burst_buffer burst_buffer_state cluster_features container cpus_per_tres "
    "excluded_nodes features federation_origin federation_siblings_active federation_siblings_viable "
    "het_job_id_set licenses mcs_label memory_per_tres prefer required_nodes resv_name standard_error "
    "standard_output system_comment tres_bind tres_freq tres_per_job tres_per_socket "
    "tres_per_task wckey"
)
_NUMBERS = (
    "accrue_time array_max_tasks association_id deadline delay_boot het_job_id het_job_offset "
    "last_sched_evaluation max_cpus max_nodes minimum_tmp_disk_per_node pre_sus_time preempt_time resize_time "
    "sockets_per_board suspend_time tasks_per_board tasks_per_node time_minimum"
)
_UNSET = (
    "core_spec thread_spec cores_per_socket billable_tres cpu_frequency_minimum cpu_frequency_maximum "
    "cpu_frequency_governor memory_per_cpu tasks_per_core tasks_per_socket profile shared sockets_per_node "
    "threads_per_core"
)
_OF_JOBS: dict[str, Any] = {
    **dict.fromkeys(_TEXTS.split(), ""),
    **dict.fromkeys(_NUMBERS.split(), 0),
    **dict.fromkeys(_UNSET.split()),
    "contiguous": False,
    "flags": [],
    "gres_detail": [],
    "minimum_cpus_per_node": 1,
    "reboot": False,
    "show_flags": ["SHOW_ALL", "SHOW_DETAIL", "SHOW_LOCAL"],
    "standard_input": "/dev/null",
}
"""What Slurm tells of every job and fairlog knows nothing of."""
_TEXTS_OF_NODES = "active_features burstbuffer_network_address comment extra features mcs_label"
_NUMBERS_OF_NODES = "boot_time cpu_binding cpu_load last_busy port reason_changed_at slurmd_start_time temporary_disk"
_OF_NODES: dict[str, Any] = {
    **dict.fromkeys(_TEXTS_OF_NODES.split(), ""),
    **dict.fromkeys(_NUMBERS_OF_NODES.split(), 0),
    "gres_drained": "N/A",
    "next_state_after_reboot": "invalid",
    "next_state_after_reboot_flags": [],
    "owner": None,
    "reason_set_by_user": None,
    "tres_weighted": 0.0,
    "weight": 1,
}
"""Likewise, of every node."""


def print_document(kind: str, items: list[dict[str, Any]]) -> int:
    """Print the items, which are `jobs` or `nodes`."""
    from fairlog.compat.slurm.start import VERSION  # noqa: PLC0415 (it imports the commands)

    release = VERSION.split()[-1]
    major, minor, micro = (int(each) for each in release.split("."))
    meta = {
        "plugin": {"type": "openapi/v0.0.38", "name": "fairlog"},
        "Slurm": {"version": {"major": major, "micro": micro, "minor": minor}, "release": release},
    }
    sys.stdout.write(json.dumps({"meta": meta, "errors": [], kind: items}, indent=3) + "\n")
    return 0


def of_queue(job: SlurmJob) -> dict[str, Any]:
    """A job as squeue tells it."""
    app, code = job.app, job.code
    listed = None if job.indexes is None else jobs.spans(job.indexes)
    return {
        **_OF_JOBS,
        "account": app["company"],
        "array_job_id": job.number if app["array"] else 0,
        "array_task_id": job.index,
        "array_task_string": listed or "",
        "batch_flag": True,
        "batch_host": job.nodes[0] if job.nodes else "",
        "cluster": CLUSTER,
        "command": app["name"],
        "comment": app.get("comment") or "",
        "cpus": job.cores,
        "cpus_per_task": job.cores,
        "current_working_directory": app["cwd"] or "/",
        "dependency": jobs.after_of(app),
        "derived_exit_code": code[0] << 8,
        "eligible_time": _seconds(job.eligible),
        "end_time": _seconds(job.end or _latest(job)),
        "exit_code": code[0] << 8 | code[1],
        "group_id": os.getgid(),
        "group_name": app["company"],
        "job_id": job.own_number,
        "job_state": job.state,
        "memory_per_node": job.memory,
        "name": app["name"],
        "nice": -app["priority"],
        "node_count": job.node_count,
        "nodes": list_of(job.nodes),
        "partition": PARTITION,
        "priority": app["priority"] + 1000,
        "qos": QOS,
        "requeue": not app.get("noRequeue"),
        "restart_cnt": job.restarts,
        "start_time": _seconds(job.start or app["beginAt"]),
        "state_description": "",
        "state_reason": job.reason,
        "submit_time": _seconds(app["submittedAt"]),
        "tasks": 1,
        "time_limit": _minutes(job),
        "tres_alloc_str": job.tres if job.start is not None else "",
        "tres_per_node": job.gres_per_node if job.kinds else "",
        "tres_req_str": job.tres,
        "user_id": os.getuid(),
        "user_name": app["user"],
    }


def of_account(job: SlurmJob, *, steps: bool) -> dict[str, Any]:
    """A job as sacct tells it, with its step unless the steps are left out."""
    app = job.app
    cpu_ms, peak_mb = sum(task["cpu_ms"] for task in job.tasks), max((task["peak_mb"] for task in job.tasks), default=0)
    asked = [
        _tres("cpu", 1, job.cores),
        _tres("mem", 2, job.memory),
        _tres("node", 4, job.node_count),
        _tres("billing", 5, job.cores),
        *({**_tres("gres", 1001, number), "name": kind} for kind, number in job.kinds.items()),
    ]
    began = job.start is not None
    of_step = {
        "step": {"id": {"job_id": job.number, "step_id": "batch"}, "name": "batch"},
        "state": job.state,
        "exit_code": _exit_code(job),
        "nodes": {"count": job.node_count, "list": list(job.nodes)},
        "time": {**_times(job), "total": _cpu(cpu_ms)},
        "tasks": {"count": 1},
        "tres": {"requested": {"max": [_tres("mem", 2, peak_mb << 20)]}},
    }
    return {
        "account": app["company"],
        "allocation_nodes": job.node_count if began else 0,
        "array": {
            "job_id": job.number if app["array"] else 0,
            "task": None if job.indexes is None else jobs.spans(job.indexes),
            "task_id": job.index,
        },
        "association": {"account": app["company"], "cluster": CLUSTER, "partition": None, "user": app["user"]},
        "cluster": CLUSTER,
        "comment": {"administrator": None, "job": app.get("comment") or None, "system": None},
        "derived_exit_code": _exit_code(job),
        "exit_code": _exit_code(job),
        "group": app["company"],
        "job_id": job.own_number,
        "name": app["name"],
        "nodes": list_of(job.nodes) or "None assigned",
        "partition": PARTITION,
        "priority": app["priority"] + 1000,
        "qos": QOS,
        "required": {"CPUs": job.cores, "memory": job.memory},
        "state": {"current": job.state, "reason": job.reason},
        "steps": [of_step] if steps and began else [],
        "time": {
            **_times(job),
            "eligible": _seconds(job.eligible),
            "submission": _seconds(app["submittedAt"]),
            "limit": _minutes(job),
            "total": _cpu(cpu_ms),
        },
        "tres": {"allocated": asked if began else [], "requested": asked},
        "user": app["user"],
        "working_directory": app["cwd"] or "/",
    }


def of_node(node: SlurmNode) -> dict[str, Any]:
    """A node as sinfo tells it."""
    flags, state = _FLAGS.get(node.state, ([], node.state))
    return {
        **_OF_NODES,
        "address": node.worker["host"],
        "alloc_cpus": node.used,
        "alloc_memory": node.used_memory,
        "architecture": os.uname().machine,
        "boards": 1,
        "cores": node.cores,
        "cpus": node.cores,
        "free_memory": node.memory - node.used_memory,
        "gres": gres(node.offered),
        "gres_used": node.gres_used if node.offered else "",
        "hostname": node.worker["host"],
        "idle_cpus": node.counts[1],
        "name": node.name,
        "operating_system": os.uname().sysname,
        "partitions": [PARTITION],
        "real_memory": node.memory,
        "reason": node.reason,
        "slurmd_version": "22.05.8",
        "sockets": 1,
        "state": state,
        "state_flags": flags,
        "threads": 1,
        "tres": node.tres,
        "tres_used": node.tres_used or None,
    }


def _seconds(ms: int | None) -> int:
    return 0 if ms is None else int(ms) // 1000


def _minutes(job: SlurmJob) -> int | None:
    """The time limit, rounded up; None for none."""
    return None if job.limit_s is None else -(-job.limit_s // 60)


def _latest(job: SlurmJob) -> int | None:
    """When (ms) the time of a running job is over."""
    return None if job.start is None or job.limit_s is None else job.start + 1000 * job.limit_s


def _times(job: SlurmJob) -> dict[str, Any]:
    return {"elapsed": job.ran_s, "start": _seconds(job.start), "end": _seconds(job.end), "suspended": 0}


def _cpu(ms: int) -> dict[str, int]:
    return {"seconds": ms // 1000, "microseconds": ms % 1000 * 1000}


def _tres(kind: str, number: int, count: int) -> dict[str, Any]:
    return {"type": kind, "name": None, "id": number, "count": count}


def _exit_code(job: SlurmJob) -> dict[str, Any]:
    code, number = job.code
    if number and job.state == "CANCELLED":
        return {"status": "SIGNALED", "return_code": 0, "signal": {"signal_id": number}}
    return {"status": "ERROR" if code else "SUCCESS", "return_code": code}
