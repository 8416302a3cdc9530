"""What the end of an attempt means. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from fleetctl.launch.model import exit_status
from fleetctl.rundir.model import WITHOUT_GPUS, Ending, Progress

_SIGNAL_BASE = 128  # the shell and srun: a task killed by signal N has status 128 + N


class Ended(Struct, frozen=True):
    """How an attempt ended. `failure` names it so that the same failure is known again; empty if it is none."""

    ending: Ending
    status: int
    signal: int | None
    failure: str


# What srun says of the tasks that end badly, the first of them first (src/srun/libsrun/launch.c)
_TASK_ENDED = re.compile(rb"^srun: error: \S+: tasks? [0-9,-]+: ([ -~]{1,80})", re.MULTILINE)
# slurmctld has lost count of a job's GPUs: 22.05.8, after it lost two nodes of it at once (src/common/slurm_errno.c)
_NO_GPUS = re.compile(rb"^srun: error: [^\n]{0,200}Invalid generic resource \(gres\) specification", re.MULTILINE)
NOT_SAVED = "it did not save when it was asked to"


def classify(
    codes: Mapping[str, int],
    stopped: Ending | None,
    progress: Progress | None,
    *,
    told: bool,
    saved: bool = True,
    log: bytes = b"",
    hung_in: str = "",
    came_back: bool = False,
) -> Ended:
    """`codes` are the steps' statuses, the cause first; `stopped` is why we ended the steps ourselves, if we did, and
    `saved` whether the save that we had asked for was done: a chain of links that save nothing must end. `log` is the
    end of what the steps printed, `hung_in` the phase in which the attempt was found hung, and `came_back` whether
    Slurm had begun the job before: at its first start, what srun says of its GPUs is about what the spec asks for.

    What we or Slurm did to the steps explains their statuses, so it is looked at first. A training that said `done` has
    finished, whatever its teardown did. Its target step alone is not enough for that: its last save comes after it. One
    that returns 0 before its target step has not finished.
    """
    status = exit_status(tuple(codes.values()))
    done = progress is not None and progress.done
    name = next((name for name, code in codes.items() if code), "")
    number = status - _SIGNAL_BASE if _SIGNAL_BASE < status < _SIGNAL_BASE + 65 else None
    if done or (status == 0 and stopped is None and not told and not _stopped_early(progress)):
        return Ended(Ending.FINISHED, status, number, "")
    if stopped is Ending.HUNG:
        return Ended(stopped, status, number, f"hang in {hung_in.replace('_', ' ')}")
    if stopped is not None:
        return Ended(stopped, status, number, "" if saved else NOT_SAVED)
    if told:
        return Ended(Ending.TOLD, status, number, "")
    if status == 0:
        return Ended(Ending.STOPPED_EARLY, status, None, "status 0 before the target step")
    if came_back and progress is None and _NO_GPUS.search(log):
        return Ended(Ending.FAILED, status, number, WITHOUT_GPUS)
    # srun's own status is the highest of all tasks', those included that it ended itself after the first: it flaps
    first = _TASK_ENDED.search(log)
    how = f"signal {number}" if number is not None else f"status {status}"
    how = first[1].decode("ascii").strip() if first else how
    return Ended(Ending.FAILED, status, number, f"step {name}: {how}")


def _stopped_early(progress: Progress | None) -> bool:
    """Whether the training told a target step and did not reach it."""
    if progress is None or progress.target_step is None or progress.training_step is None:
        return False
    return progress.training_step < progress.target_step
