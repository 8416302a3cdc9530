"""Proves with one held job that this site's lookups find the comment that a job was submitted with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from fleetctl.errors import CannotTell, JobUnknown, SlurmError
from fleetctl.slurm.model import Accepted, Job, JobId
from fleetctl.slurm.profile import Comments

if TYPE_CHECKING:
    from fleetctl.slurm.port import Slurm

_SCRIPT = "#!/bin/sh\n# fleetctl cluster probe: this job is held, looked up and cancelled; it never runs.\nexit 0\n"
_OPTIONS = ("--hold", "--time=1", "--job-name=fleetctl-probe", "--output=/dev/null")


class Proof(Struct, frozen=True):
    """What the test job showed, and what was done, in sentences."""

    comments: Comments
    notes: tuple[str, ...]


def prove_comments(slurm: Slurm, user: str, folder: Path, job_args: Sequence[str] = ()) -> Proof:
    """Submit one job held, look it up by its comment among `user`'s jobs, cancel it.

    `folder` is empty, and only this machine need see it; `job_args` are sbatch options, such as an account.
    """
    comment = f"fleetctl:probe-{os.urandom(8).hex()}"
    script = folder / "probe.sh"
    script.write_text(_SCRIPT)
    answer = slurm.submit(
        script,
        stdout=folder / "stdout",
        stderr=folder / "stderr",
        cwd=folder,
        extra_args=(*_OPTIONS, f"--comment={comment}", *job_args),
    )
    job_id = answer.job_id if isinstance(answer, Accepted) else None
    try:
        found = [job for job in slurm.jobs(user=user) if job.comment == comment]
    except CannotTell as error:
        notes = _cancel(slurm, job_id, ())
        return Proof(Comments.UNPROVEN, (f"the test job could not be looked up: {error.message}", *notes))
    notes = _cancel(slurm, job_id, found)
    if found:
        return Proof(Comments.FOUND, (f"job {found[0].id} was submitted held and found by its comment", *notes))
    if isinstance(answer, Accepted):
        return Proof(Comments.NOT_STORED, (f"job {job_id} was submitted held, but no lookup finds its comment", *notes))
    return Proof(Comments.UNPROVEN, (f"the test job was not accepted: {answer.text}", *notes))


def _cancel(slurm: Slurm, job_id: JobId | None, found: Sequence[Job]) -> tuple[str, ...]:
    notes: list[str] = []
    for target in sorted({job.id for job in found} | ({job_id} if job_id else set())):
        try:
            slurm.cancel(target)
            notes.append(f"job {target} was cancelled")
        except JobUnknown:
            notes.append(f"job {target} had ended already")
        except (SlurmError, CannotTell) as error:
            notes.append(f"job {target} could not be cancelled, and stays held: {error.message}")
    return tuple(notes)
