"""What Slurm tells us, as values: ids, states, jobs, accounting records, nodes, and the answer to a submission.

An empty text or None means that Slurm gave none. Times are aware and in UTC. A word of Slurm that we do not know is
kept and is neither success nor failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

_JOB_ID = re.compile(r"([0-9]+)(?:_([0-9]+)|\+([0-9]+)|_\[[^\]\s;]*\])?(?:;([^\s;]+))?", re.ASCII)
_TASK_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+)(?::([1-9][0-9]*))?)?", re.ASCII)
MAX_JOB_NUMBER = 2**32 - 1  # job ids are uint32_t (slurm.h)
MAX_ARRAY_INDEX = 4_000_001  # the cap of MaxArraySize (slurm.conf.5)


class JobId(Struct, frozen=True):
    """The number that people use: of a job, of one array element or of one hetjob component.

    `cluster` is kept apart: Slurm's own commands take it as an option, never within the id.
    """

    base: int
    array_index: int | None = None
    het_offset: int | None = None
    cluster: str | None = None

    @classmethod
    def parse(cls, text: str) -> JobId:
        """Read `123`, `123_4`, `123+1`, each with an optional `;cluster`.

        The pending rest of an array, such as `123_[0-9%2]`, is the array's own id `123`.
        :raises ValueError: it is no job id.
        """
        match = _JOB_ID.fullmatch(text)
        if match is None or not 0 < int(match[1]) <= MAX_JOB_NUMBER:
            raise ValueError(f"not a Slurm job id: {text[:80]!r}")
        index, offset = (None if part is None else int(part) for part in match.group(2, 3))
        if max(index or 0, offset or 0) > MAX_JOB_NUMBER:
            raise ValueError(f"not a Slurm job id: {text[:80]!r}")
        return cls(int(match[1]), index, offset, match[4])

    def __str__(self) -> str:
        if self.array_index is not None:
            return f"{self.base}_{self.array_index}"
        return str(self.base) if self.het_offset is None else f"{self.base}+{self.het_offset}"

    def __lt__(self, other: JobId) -> bool:
        return self._order() < other._order()

    def _order(self) -> tuple[str, int, int, int]:
        index = -1 if self.array_index is None else self.array_index
        return (self.cluster or "", self.base, index, -1 if self.het_offset is None else self.het_offset)


# How long sbatch may take. It may block 120 s by itself (src/sbatch/sbatch.c, MAX_RETRIES: sleeps of 1..15 s).
SBATCH_LIMIT_S = 150


class GpuStyle(StrEnum):
    """How this cluster wants GPUs asked for; the two are mutually exclusive (sbatch.1, enforced from 26.05)."""

    GPUS_PER_NODE = "gpus_per_node"
    GRES = "gres"  # select/linear and select/cons_res refuse the --gpus options
    NONE = "none"  # Slurm has no GPUs configured


class MemoryStyle(StrEnum):
    """How this cluster wants memory asked for; the forms are mutually exclusive (sbatch.1, --mem)."""

    PER_NODE = "per_node"
    PER_CPU = "per_cpu"
    NONE = "none"  # memory is not scheduled: emit nothing


class BaseState(StrEnum):
    """A job is in exactly one of these (slurm.h, enum job_states)."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"


class StateFlag(StrEnum):
    """Any number of these beside the base state (slurm.h, JOB_STATE_FLAGS; 22.05 to 26.05)."""

    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    EXPEDITING = "EXPEDITING"  # from 25.11
    LAUNCH_FAILED = "LAUNCH_FAILED"
    POWER_UP_NODE = "POWER_UP_NODE"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESIZING = "RESIZING"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    REVOKED = "REVOKED"
    SIGNALING = "SIGNALING"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    UPDATE_DB = "UPDATE_DB"


_GOING_ON = frozenset({BaseState.PENDING, BaseState.RUNNING, BaseState.SUSPENDED})
# These say how the job got where it is; every other flag says that Slurm has not finished with it.
_DESCRIPTIVE = frozenset({StateFlag.LAUNCH_FAILED, StateFlag.RECONFIG_FAIL, StateFlag.REVOKED, StateFlag.UPDATE_DB})


class JobState(Struct, frozen=True):
    """A base state and flags. The text commands show one word: a flag hides the base state, which is then None."""

    base: BaseState | None
    flags: frozenset[StateFlag] = frozenset()
    unknown: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> JobState:
        """Read one column: `RUNNING`, `CANCELLED by 0` (sacct) or words joined by `+`. Never raises."""
        words = text.strip().split("+")
        words[0] = words[0].partition(" by ")[0]
        return cls.of(words)

    @classmethod
    def of(cls, words: Iterable[str]) -> JobState:
        """Read the list of words that JSON gives. Never raises; two base states contradict each other: unknown."""
        bases: list[BaseState] = []
        flags: list[StateFlag] = []
        unknown: list[str] = []
        for word in words:
            if word in BaseState.__members__:
                bases.append(BaseState[word])
            elif word in StateFlag.__members__:
                flags.append(StateFlag[word])
            else:
                unknown.append(word)
        if len(bases) > 1:
            unknown += bases
            bases = []
        return cls(bases[0] if bases else None, frozenset(flags), tuple(unknown))

    @property
    def is_terminal(self) -> bool:
        """True only when Slurm will do nothing more with this job by itself."""
        if self.base is None or self.base in _GOING_ON or self.unknown:
            return False
        return self.flags <= _DESCRIPTIVE

    def __str__(self) -> str:
        words = [self.base] if self.base else []
        return "+".join([*words, *sorted(self.flags), *self.unknown])


class Job(Struct, frozen=True):
    """One row of the controller: a job, an array element, an array's pending rest, or a hetjob component."""

    id: JobId
    raw_id: int  # the number of this row alone: elements and components have their own
    pending_tasks: str  # the rest of an array, as Slurm writes it: `0-9%2`, `1,3-5`, `0-8:2`
    name: str
    user: str
    state: JobState
    reason: str
    comment: str  # its user can edit it
    partition: str
    account: str
    node_list: str
    node_count: int | None
    submit_time: datetime | None
    start_time: datetime | None  # of a pending job: Slurm's estimate
    end_time: datetime | None  # of a job that has not ended: when its time limit ends it
    time_limit_s: int | None  # None: unlimited, or the partition's default is not filled in yet
    command: str
    work_dir: str
    dependency: str
    excluded_nodes: str
    priority: int | None
    gres_per_node: str
    batch_host: str = ""  # the node of its batch script; empty when it has no nodes
    restarts: int | None = None  # of this row's start; None: not asked for, or it began again while we asked
    wckey: str = ""  # its user's words

    def is_part_of(self, wanted: JobId) -> bool:
        """Whether asking for `wanted` asks for this row; a raw id counts as well."""
        if wanted.base == self.raw_id and wanted.array_index is None and wanted.het_offset is None:
            return True
        if wanted.base != self.id.base:
            return False
        if wanted.het_offset is not None:
            return wanted.het_offset == self.id.het_offset
        if wanted.array_index is None:
            return True
        return wanted.array_index == self.id.array_index or has_task(self.pending_tasks, wanted.array_index)


class JobRecord(Struct, frozen=True):
    """One row of accounting: one run of a job; a requeue begins another row with the same id."""

    id: JobId
    raw_id: int
    pending_tasks: str
    name: str
    user: str
    state: JobState
    exit_code: tuple[int, int] | None  # (status, signal)
    derived_exit_code: tuple[int, int] | None  # the highest of its steps
    submit_time: datetime | None
    start_time: datetime | None
    end_time: datetime | None
    elapsed_s: int | None
    partition: str
    account: str
    node_list: str
    comment: str
    db_index: int | None


class Node(Struct, frozen=True):
    """A node: one base state (`IDLE`, `MIXED`, `DOWN` ...) and flags (`DRAIN`, `NOT_RESPONDING` ...), upper case."""

    name: str
    base_state: str
    flags: frozenset[str]
    reason: str
    reason_user: str
    reason_time: datetime | None
    gpus: int
    gpus_used: int
    gres: str
    cpus: int | None
    memory_mib: int | None
    partitions: tuple[str, ...]


class Partition(Struct, frozen=True):
    """A partition; None for a time is no limit, or no default."""

    name: str
    is_default: bool
    state: str
    max_time_s: int | None
    default_time_s: int | None
    node_count: int


class Reservation(Struct, frozen=True):
    """Nodes kept for a time. `flags` are words such as MAINT (scontrol.1)."""

    name: str
    node_list: str  # empty: of no nodes
    starts_at: datetime | None
    ends_at: datetime | None
    flags: frozenset[str]


class AdminLevel(StrEnum):
    """What accounting lets a user do (sacctmgr.1, AdminLevel)."""

    NONE = "None"
    OPERATOR = "Operator"
    ADMINISTRATOR = "Administrator"


class Accepted(Struct, frozen=True):
    """Slurm has the job."""

    job_id: JobId


class Refused(Struct, frozen=True):
    """There is no job: Slurm said no, or sbatch did before it asked. The same call will be refused again."""

    code: int
    text: str  # Slurm's and the site's own words, one line


class NotSent(Struct, frozen=True):
    """There is no job: sbatch never got a connection to a controller. Submitting again is safe."""

    text: str


class Unknown(Struct, frozen=True):
    """There may be a job. Only a lookup can tell."""

    text: str


SubmitAnswer = Accepted | Refused | NotSent | Unknown


def has_task(tasks: str, index: int) -> bool:
    """Whether `index` is in an array expression (`0-9%2`, `1,3-5`, `0-8:2`); False for what we cannot read."""
    for part in tasks.partition("%")[0].split(","):
        if (match := _TASK_RANGE.fullmatch(part)) is not None:
            first = int(match[1])
            last = first if match[2] is None else int(match[2])
            if first <= index <= last and (index - first) % int(match[3] or 1) == 0:
                return True
    return False
