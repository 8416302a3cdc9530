"""What is known of one run, or of one element of a sweep, as values: what the two ledgers are made of. Pure.

All times are milliseconds since the epoch, by whatever clock wrote them: the login node's, the controller's, or those
of the compute nodes. They need not agree. None is unknown or not yet.
"""

from __future__ import annotations

from msgspec import Struct

from fleetctl.rundir.model import AttemptNumber


class RecordFacts(Struct, frozen=True):
    """One record of Slurm that belongs to the run.

    `ended_ms` None: it is open, and known to have been alive at `alive_ms`. `gpus` None: it held something, and Slurm
    does not say what.
    """

    record: str
    state: str
    account: str
    partition: str
    submitted_ms: int | None
    eligible_ms: int | None
    started_ms: int | None
    ended_ms: int | None
    alive_ms: int | None = None
    purged_ms: int | None = None  # when Slurm was first seen to have forgotten it
    suspended_ms: int = 0
    nodes: int | None = None
    gpus: int | None = None
    het_offset: int | None = None


class AttemptFacts(Struct, frozen=True):
    """One attempt, as the run directory tells it. `ending` is "" while it goes on, or where nobody could write it."""

    number: AttemptNumber
    started_ms: int
    ended_ms: int | None
    ending: str = ""
    nodes: int | None = None  # that its training uses
    resume_step: int | None = None
    first_step: int | None = None
    first_step_ms: int | None = None  # when its first training step had been done
    last_step: int | None = None
    last_step_ms: int | None = None
    done: bool = False  # the training said that nothing is left


class SaveFacts(Struct, frozen=True):
    """One save of a checkpoint. It began `total_ms` before `saved_ms`, and for the first `blocked_ms` of that the
    training waited."""

    number: AttemptNumber
    sequence: int
    training_step: int
    committed: bool
    saved_ms: int | None = None  # when it had ended
    blocked_ms: int | None = None
    total_ms: int | None = None


class InterruptionFacts(Struct, frozen=True):
    """Why attempt `number` ended before the run did. `cause` is the likeliest; "": none is known."""

    number: AttemptNumber
    at_ms: int
    cause: str
    by_person: bool  # only a person brought the run back, or can


class RunFacts(Struct, frozen=True):
    """One run, or one element of a sweep (`task`; -1 where it is none). The order of the tuples means nothing."""

    run_id: str
    task: int
    name: str
    user: str
    cluster: str
    created_ms: int
    finished: bool | None  # None: it is not over, or nobody knows
    nodes: int | None = None  # that its training uses, without spares
    checkpoints: str | None = None  # format in its spec; "": it has none there; None: not known
    records: tuple[RecordFacts, ...] = ()
    attempts: tuple[AttemptFacts, ...] = ()
    saves: tuple[SaveFacts, ...] = ()
    interruptions: tuple[InterruptionFacts, ...] = ()
