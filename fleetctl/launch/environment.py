"""The environment of the training: what fleetctl promises to every step."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fleetctl.launch.model import JobIdentity
from fleetctl.rundir.files import explained
from fleetctl.rundir.store import RunDir
from fleetctl.slurm.hosts import expand

_ATTEMPT = re.compile(r"([0-9]+)\.[0-9]+")  # file systems and people leave other things there

if TYPE_CHECKING:
    from fleetctl.slurm.port import Slurm


def run_environment(base: Mapping[str, str], run: RunDir, attempt: str, job: JobIdentity) -> dict[str, str]:
    """`base` and what fleetctl tells every step about its run."""
    before = base.get("PYTHONPATH")
    return {
        **base,
        "FLEETCTL_RUN_ID": run.run_id,
        "FLEETCTL_RUN_DIR": str(run.path),
        "FLEETCTL_ATTEMPT": attempt,
        "FLEETCTL_PROGRESS_FILE": str(run.attempt_dir(attempt, job.task) / "progress.json"),
        "PYTHONPATH": f"{run.path / 'python'}{os.pathsep + before if before else ''}",
    }


def rendezvous(environ: Mapping[str, str], address: str) -> dict[str, str]:
    """MASTER_ADDR and MASTER_PORT, unless the user chose them. The port is free on this host, the head's as a rule."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    found = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    return {name: environ.get(name, value) for name, value in found.items()}


def head_address(nodes: str, slurm: Slurm) -> str:
    """Where the first node of Slurm's host list `nodes` is reached: its name if that resolves here, else NodeAddr."""
    head = expand(nodes)[0]
    try:
        socket.getaddrinfo(head, None)
    except OSError:
        return slurm.address(head)
    return head


def claim_attempt(folder: Path) -> str:
    """Make the next attempt's folder under `folder`, exclusively, and return its name: 1.0, then 2.0, ...

    :raises RunDirError: disk full, read-only, ...
    """
    with explained(folder, "write"):
        folder.mkdir(parents=True, exist_ok=True)
        names = [match for entry in folder.iterdir() if (match := _ATTEMPT.fullmatch(entry.name)) is not None]
        number = max((int(match[1]) for match in names), default=0)
        while True:
            number += 1
            try:
                (folder / f"{number}.0").mkdir()
            except FileExistsError:
                continue
            return f"{number}.0"
