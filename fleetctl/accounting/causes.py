"""Why something ended, and what Slurm's accounting alone says of it (ranks.py weighs all that is known). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct


class Cause(StrEnum):
    """Why an attempt or a record of Slurm ended."""

    GOING_ON = ""  # it has not ended
    COMPLETED = "completed"
    MASKED_FAILURE = "masked_failure"  # COMPLETED, and a step of it failed: its script went on
    RESIZED = "resized"  # the job goes on in another record
    REVOKED = "revoked"  # another cluster of the federation took the job
    STOPPED_EARLY = "stopped_early"  # status 0 before the target step
    PROGRAM = "program"  # an exit status of its own
    CRASH = "crash"  # a signal that a program brings on itself
    PROGRAM_OR_SIGNAL = "program_or_signal"  # 9: status 9, or 137 as sacct before 25.11 prints it
    KILLED = "killed"  # SIGKILL, by nobody known
    TERMINATED = "terminated"  # asked to end, by nobody known
    OUT_OF_MEMORY = "out_of_memory"
    TIME_LIMIT = "time_limit"
    DEADLINE = "deadline"
    PREEMPTED = "preempted"
    REQUEUED = "requeued"  # by itself or somebody who asked Slurm
    CANCELLED_BY_USER = "cancelled_by_user"
    CANCELLED_BY_ADMIN = "cancelled_by_admin"
    CANCELLED = "cancelled"  # by nobody known; also what a cold start of slurmctld does to open records
    LAUNCH = "launch"  # it never started: a prolog, the boot of a node
    HANG = "hang"  # its ranks went silent, and its head ended it
    FENCED = "fenced"  # another head took the run over
    NODE = "node"  # a node was lost, and why is not known
    GPU = "gpu"
    NETWORK = "network"
    HOST = "host"  # memory, PCIe, kernel, local disk
    STORAGE = "storage"  # a file system
    UNKNOWN = "unknown"


ENDED_WELL = frozenset({Cause.COMPLETED, Cause.RESIZED, Cause.REVOKED})
HARDWARE = frozenset({Cause.NODE, Cause.GPU, Cause.NETWORK, Cause.HOST, Cause.STORAGE})
# Somebody's decision, or a limit that was known before: no failure
DECIDED = frozenset(
    {
        Cause.TIME_LIMIT,
        Cause.DEADLINE,
        Cause.PREEMPTED,
        Cause.REQUEUED,
        Cause.CANCELLED_BY_USER,
        Cause.CANCELLED_BY_ADMIN,
        Cause.CANCELLED,
    }
)

# Where the row alone leaves open what happened, or which of its steps it was
TOLD_BY_STEPS = frozenset(
    {
        Cause.MASKED_FAILURE,
        Cause.PROGRAM,
        Cause.PROGRAM_OR_SIGNAL,
        Cause.CRASH,
        Cause.KILLED,
        Cause.TERMINATED,
        Cause.CANCELLED,
        Cause.UNKNOWN,
    }
)

_SIGNAL_BASE = 128  # a shell's status of a child that a signal killed: 128 + its number
_SIG_OOM = 125  # SIG_OOM & 0x7f (slurm.h)
_SIG_KILL, _SIG_TERM, _SIG_INT, _SIG_HUP = 9, 15, 2, 1
_CRASHES = frozenset({4, 6, 7, 8, 11, 31})  # ILL, ABRT, BUS, FPE, SEGV, SYS
# sacct before 25.11 takes 128 off a status (facts 2.3): which of the two these were cannot be told
_AMBIGUOUS = _CRASHES | {_SIG_KILL, _SIG_TERM}

_BY_STATE: Mapping[str, Cause] = {
    "OUT_OF_MEMORY": Cause.OUT_OF_MEMORY,
    "TIMEOUT": Cause.TIME_LIMIT,
    "DEADLINE": Cause.DEADLINE,
    "PREEMPTED": Cause.PREEMPTED,
    "BOOT_FAIL": Cause.LAUNCH,
    "LAUNCH_FAILED": Cause.LAUNCH,
    "RECONFIG_FAIL": Cause.LAUNCH,
    "REQUEUED": Cause.REQUEUED,
    "REQUEUE_HOLD": Cause.REQUEUED,
    "REQUEUE_FED": Cause.REQUEUED,
    "RESIZING": Cause.RESIZED,
    "REVOKED": Cause.REVOKED,
}
_OPEN = frozenset(
    {
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "COMPLETING",
        "CONFIGURING",
        "EXPEDITING",
        "POWER_UP_NODE",
        "RESV_DEL_HOLD",
        "SIGNALING",
        "STAGE_OUT",
        "STOPPED",
        "UPDATE_DB",
    }
)
_LAUNCH_REASONS = frozenset(
    {"JobLaunchFailure", "FailedLaunch", "launch failed requeued held", "launch_failed_requeued_held"}
)
_REASONS: Mapping[str, Cause] = {
    "NodeDown": Cause.NODE,
    "NodeFail": Cause.NODE,
    "TimeLimit": Cause.TIME_LIMIT,
    "OutOfMemory": Cause.OUT_OF_MEMORY,
    "DeadLine": Cause.DEADLINE,
}


class Ranked(Struct, frozen=True):
    """One cause of an ending; `evidence` is one line for people, `node` "" where it is none's."""

    cause: Cause
    evidence: str
    node: str = ""


def slurm_cause(
    state: str,
    *,
    status: int | None = None,
    signal: int | None = None,
    derived_status: int | None = None,
    derived_signal: int | None = None,
    state_by: int | None = None,
    owner: int | None = None,
    failed_node: str = "",
    reason: str = "",
) -> Cause:
    """What Slurm's accounting alone says of a record or a step. Never raises; a word that we do not know is UNKNOWN.

    `state` is one word, or `CANCELLED by UID`; `state_by` is that uid and `owner` the uid of the job's owner, where
    they are known.
    """
    words = state.replace("+", " ").split()
    word = words[0] if words else ""
    if word in _OPEN:
        return Cause.GOING_ON
    if word == "NODE_FAIL":
        return Cause.LAUNCH if reason in _LAUNCH_REASONS else Cause.NODE
    if word in _BY_STATE:
        return _BY_STATE[word]
    exit_cause = exit_class(status, signal)
    if word == "CANCELLED":
        return _cancelled(state_by, owner, exit_cause)
    if word == "COMPLETED" and exit_cause is Cause.COMPLETED:
        return Cause.MASKED_FAILURE if derived_status or derived_signal else Cause.COMPLETED
    if word in ("FAILED", "SPECIAL_EXIT", "COMPLETED"):
        return _failed(exit_cause, status, failed_node, reason)
    return Cause.UNKNOWN


def with_steps(cause: Cause, exits: Iterable[tuple[str, int | None, int | None]]) -> Cause:
    """The cause of a record, given state, status and signal of each of its steps.

    A script that ends with a status of its own after srun has failed hides what its step died of; the step tells. A
    job that completed stays what it is.
    """
    if cause not in (Cause.PROGRAM, Cause.PROGRAM_OR_SIGNAL):
        return cause
    found = {slurm_cause(state, status=status, signal=signal) for state, status, signal in exits}
    for worse in (Cause.OUT_OF_MEMORY, Cause.CRASH):  # the others of a step often crash when memory ended one
        if worse in found:
            return worse
    return cause


def exit_class(status: int | None, signal: int | None) -> Cause:
    """What `ExitCode` says: COMPLETED for 0:0, UNKNOWN where it is not known."""
    number = signal or 0
    if status is not None and _SIGNAL_BASE < status < _SIGNAL_BASE + 65 and not number:
        number = status - _SIGNAL_BASE
    if number:
        return _signalled(number)
    if status is None:
        return Cause.UNKNOWN
    if status in _AMBIGUOUS:
        return Cause.PROGRAM_OR_SIGNAL
    return Cause.PROGRAM if status else Cause.COMPLETED


def _signalled(number: int) -> Cause:
    if number == _SIG_OOM:
        return Cause.OUT_OF_MEMORY
    if number == _SIG_KILL:
        return Cause.KILLED
    if number in (_SIG_TERM, _SIG_INT, _SIG_HUP):
        return Cause.TERMINATED
    return Cause.CRASH  # the ordinary ones of _CRASHES, and what no program expects


def _cancelled(by: int | None, owner: int | None, exit_cause: Cause) -> Cause:
    """A step that a signal killed is CANCELLED too, though nobody cancelled it: then it has no `by`."""
    if by is None:
        told = exit_cause in (Cause.CRASH, Cause.OUT_OF_MEMORY)
        return exit_cause if told else Cause.CANCELLED
    if by == owner:
        return Cause.CANCELLED_BY_USER
    return Cause.CANCELLED_BY_ADMIN if by == 0 or owner is not None else Cause.CANCELLED


def _failed(exit_cause: Cause, status: int | None, failed_node: str, reason: str) -> Cause:
    if failed_node and status == 1:
        return Cause.NODE
    if reason in _LAUNCH_REASONS:
        return Cause.LAUNCH
    if exit_cause in (Cause.COMPLETED, Cause.UNKNOWN):
        return _REASONS.get(reason, Cause.UNKNOWN)
    return exit_cause
