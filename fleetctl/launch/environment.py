"""The environment of the training: what fleetctl promises to every step."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fleetctl.launch.hearts import folder_of
from fleetctl.launch.model import CheckpointOrder, JobIdentity
from fleetctl.launch.resume import Resume, directory_of
from fleetctl.rundir.store import RunDir
from fleetctl.slurm.hosts import expand

if TYPE_CHECKING:
    from fleetctl.reliability.estimate import Plan
    from fleetctl.slurm.port import Slurm

# Below every system's range for outgoing connections (Linux: from 32768, IANA: from 49152), so that nothing takes the
# port by chance between our look and rank 0's bind; above what services commonly have.
_PORTS = range(20_000, 29_000)
_TRIES = 50

# What NCCL does when a peer is gone, unless the user chose otherwise: fail soon, since a training that hangs cannot be
# restarted. TORCH_NCCL_ASYNC_ERROR_HANDLING=1 is torch's own default since 2.2 and said here for older ones.
NCCL_DEFAULTS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "NCCL_DEBUG": "WARN"}


def beats_folder(run_id: str, attempt: str, job: JobIdentity) -> str:
    """Where the ranks of an attempt beat, on each node."""
    return folder_of(run_id, attempt, job.raw_id or job.job_id)


def run_environment(base: Mapping[str, str], run: RunDir, attempt: str, job: JobIdentity) -> dict[str, str]:
    """`base` and what fleetctl tells every step about its run."""
    before = base.get("PYTHONPATH")
    folder = run.attempt_dir(attempt, job.task)
    return {
        **NCCL_DEFAULTS,
        **base,
        "FLEETCTL_RUN_ID": run.run_id,
        "FLEETCTL_RUN_DIR": str(run.path),
        "FLEETCTL_ATTEMPT": attempt,
        "FLEETCTL_ATTEMPT_DIR": str(folder),
        "FLEETCTL_PROGRESS_FILE": str(folder / "progress.json"),
        "FLEETCTL_BEATS": beats_folder(run.run_id, attempt, job),
        "FLEETCTL_SAVE_FLAG": str(folder / "save-now"),
        "PYTHONPATH": f"{run.path / 'python'}{os.pathsep + before if before else ''}",
    }


def checkpoint_environment(
    order: CheckpointOrder | None, resume: Resume, task: int | None, pace: Plan | None = None
) -> dict[str, str]:
    """Where the training saves, how often, and what it resumes from. `pace` is there under `interval: auto`."""
    if order is None:
        return {}
    found = {"FLEETCTL_CHECKPOINT_DIR": str(directory_of(order, task))}
    if pace is not None:
        found["FLEETCTL_CHECKPOINT_INTERVAL_S"] = str(round(pace.auto_s))
        found["FLEETCTL_CHECKPOINT_MTBF_S"] = str(round(pace.mtbf.seconds))
    elif order.interval_s is not None:
        found["FLEETCTL_CHECKPOINT_INTERVAL_S"] = str(order.interval_s)
    if resume.path is not None:
        found |= {"FLEETCTL_RESUME_PATH": resume.path, "FLEETCTL_RESUME_STEP": str(resume.training_step)}
    return found


def rendezvous(environ: Mapping[str, str], address: str) -> dict[str, str]:
    """MASTER_ADDR and MASTER_PORT, unless the user chose them. The port is free on this host, the head's as a rule."""
    found = {"MASTER_ADDR": address, "MASTER_PORT": str(_free_port())}
    return {name: environ.get(name, value) for name, value in found.items()}


def _free_port() -> int:
    for port in random.sample(_PORTS, _TRIES):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    with socket.socket() as probe:  # a crowded host: whatever the system has
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def head_address(head: str, slurm: Slurm) -> str:
    """Where a node is reached: its name if that resolves here, else Slurm's NodeAddr."""
    try:
        socket.getaddrinfo(head, None)
    except OSError:
        return slurm.address(head)
    return head


def first_node(nodes: str) -> str:
    """The first node of Slurm's host list."""
    return expand(nodes)[0]
