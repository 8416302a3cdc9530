"""What accounting counts, as frozen values. Times ending in `_s` are whole seconds since the epoch, those ending in
`_ms` milliseconds; None is unknown or not yet, never zero.

A *record* is one row of Slurm's accounting. One attempt of a run owns one or several: a hetjob has one for each
component, a job that was resized one for each size. Jobs that fleetctl did not submit have records, too.
"""

from __future__ import annotations

from msgspec import Struct


class Record(Struct, frozen=True):
    """One row of `sacct --duplicates --allocations`, read. The names are those of the columns of `job_records`."""

    record: str  # who it is within its cluster: DBIndex in decimal digits (SLUID is the same number), else raw@submit
    raw_id: int  # the number of this row alone
    job_id: int  # what people type: of an array element the array's id, of a hetjob component the leader's
    array_index: int | None
    het_offset: int | None
    pending_tasks: str  # the rest of an array that has not started, as Slurm writes it
    name: str
    user: str
    account: str
    partition: str
    qos: str
    state: str  # one word of Slurm, known to us or not
    state_by: int | None  # the uid in "CANCELLED by 1000"
    exit_status: int | None
    exit_signal: int | None
    derived_status: int | None  # the highest of its steps
    derived_signal: int | None
    submitted_s: int | None
    eligible_s: int | None
    started_s: int | None
    ended_s: int | None
    suspended_s: int | None  # None: Slurm prints no time (INVALID)
    limit_s: int | None  # None: unlimited, or the partition's own
    nodes: int | None
    cpus: int | None
    memory_mib: int | None
    gpus: int | None  # None: it held something and Slurm does not say what
    gpu_models: str  # "a100=2,h100=6", sorted; what has no type is under "gpu"; the counts add up to `gpus`
    billing: int | None  # Slurm's billing units, cut to whole ones by Slurm
    node_list: str
    failed_node: str
    restarts: int | None
    reason: str
    comment: str
    admin_comment: str
    cause: str  # causes.Cause, by what Slurm alone says; "" while it goes on


class StepRecord(Struct, frozen=True):
    """One step of one record: `batch`, `extern`, `interactive`, `0`, `0+1`."""

    record: str
    step: str
    name: str
    state: str
    exit_status: int | None
    exit_signal: int | None
    started_s: int | None
    ended_s: int | None
    node_list: str
    tasks: int | None


class NodeEvent(Struct, frozen=True):
    """A stretch of time in which a node was not simply up (sacctmgr show event). `ended_s` None: it still is."""

    node: str
    started_s: int
    ended_s: int | None
    state: str
    reason: str
    user: str


class Window(Struct, frozen=True):
    """A stretch of time, the start within it and the end not."""

    since_s: int
    until_s: int
