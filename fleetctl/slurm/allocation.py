"""What a job holds and runs at this moment, as values: its allocation and its steps."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from fleetctl.slurm.model import JobState


class Allocation(Struct, frozen=True):
    """What the controller has given to one job, and how often it has begun again.

    While a preempted job has its GraceTime, its state is RUNNING, `preempt_time` is the moment at which it was told,
    and `end_time` the moment at which it will be ended (tried on 22.05.8).
    """

    raw_id: int
    state: JobState
    restarts: int | None  # rises at once when a requeue is accepted, while the job is still COMPLETING
    node_list: str  # empty: it has no nodes
    batch_host: str  # the node of the batch script; empty when the job has no nodes
    # Such as `cpu=8,mem=16G,node=2,billing=8,gres/gpu=16`; empty when the job has no nodes. The GPUs in it are those
    # that were asked for: a job that came back without any still showed them (22.05.8). Trust `gpus`.
    alloc_tres: str
    gpus: int | None  # what it really has, 0 for none (JOB_GRES of scontrol); None: no nodes, or it cannot be told
    start_time: datetime | None
    end_time: datetime | None
    preempt_time: datetime | None


class Step(Struct, frozen=True):
    """A step that runs, or that Slurm has not finished with."""

    id: str  # `12.3`, `12.batch`, `12.extern`: the raw job number, so that it names one step of one array element
    name: str  # its user chose it
    nodes: str  # a host list; dead nodes stay in it
    task_count: int | None
    state: str  # `RUNNING`, `COMPLETING` ...
