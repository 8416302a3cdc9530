"""What a seed plays: the shape of a training, and what breaks when. Pure: the same seed is the same scenario for ever.

A new fault goes to the end of its table, and weights are part of the seeds: changing either changes what they play.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random

from msgspec import Struct


class Fault(StrEnum):
    """What breaks, or what somebody does."""

    NODE_KILLED = "node killed"
    BATCH_HOST_KILLED = "batch host killed"
    NODE_FROZEN = "node frozen"
    BATCH_HOST_FROZEN = "batch host frozen"
    NODE_CUT = "node cut off, ranks write on"
    RANK_KILLED = "rank killed"
    RANK_FROZEN = "rank frozen"
    SRUN_KILLED = "srun killed"
    AGENT_KILLED = "agent killed"
    AGENT_FROZEN = "agent frozen"
    HEAD_KILLED = "head killed"
    HEAD_FROZEN = "head frozen"
    CTLD_KILLED = "slurmctld killed"
    CTLD_STOPPED = "slurmctld stopped"
    DBD_KILLED = "slurmdbd killed"
    DBD_STOPPED = "slurmdbd stopped"
    CHECKPOINT_TORN = "checkpoint torn"
    CHECKPOINT_FLIPPED = "byte of a checkpoint flipped"
    DISK_FULL = "disk full"
    CANCELLED = "cancelled"
    SCANCELLED = "cancelled by scancel"
    REQUEUED = "requeued by an admin"
    DRAINED = "node drained by an admin"
    JOB_HELD = "job held by an admin"
    PRIORITY = "priority set by an admin"
    PREEMPTED = "preempted"
    BLACK_HOLE = "black-hole node"
    CRASH_LOOP = "crash loop"
    CONFIGURATION = "wrong configuration"
    NAN_ONCE = "NaN once"
    NAN_ALWAYS = "NaN at the same step"
    HANG = "hang"
    DAEMON_KILLED = "daemon killed"
    DAEMON_STOPPED = "daemon stopped"
    TWO_DAEMONS = "two daemons"


class Moment(StrEnum):
    """When it happens."""

    BEFORE = "before it is submitted"
    STARTING = "at its start"
    TRAINING = "while it trains, after a checkpoint"
    RECOVERING = "while it recovers from the fault before"
    CLEANING = "while Slurm cleans up after it"
    WAITING = "while it waits in the queue"


class Planned(Struct, frozen=True):
    """One fault. It comes `delay_s` after its moment, on the victim that `pick` (0 to 1) chooses, and is mended
    `mend_s` later, where it can be."""

    fault: Fault
    moment: Moment
    delay_s: float
    mend_s: float
    pick: float


class Scenario(Struct, frozen=True):
    """What one seed plays; `daemon`: `fleetctl daemon run --act` stands beside."""

    seed: int
    daemon: bool
    nodes: int
    tasks_per_node: int
    spares: int
    planned: tuple[Planned, ...]


# Fault -> how often, against the others. What survives lets the run go on; what ends decides how it ends.
_SURVIVED = {
    Fault.NODE_KILLED: 4,
    Fault.BATCH_HOST_KILLED: 4,
    Fault.NODE_FROZEN: 2,
    Fault.BATCH_HOST_FROZEN: 2,
    Fault.NODE_CUT: 3,
    Fault.RANK_KILLED: 4,
    Fault.RANK_FROZEN: 3,
    Fault.SRUN_KILLED: 1,
    Fault.AGENT_KILLED: 2,
    Fault.AGENT_FROZEN: 1,
    Fault.HEAD_KILLED: 2,
    Fault.HEAD_FROZEN: 2,
    Fault.CTLD_KILLED: 2,
    Fault.CTLD_STOPPED: 2,
    Fault.DBD_KILLED: 1,
    Fault.DBD_STOPPED: 1,
    Fault.CHECKPOINT_TORN: 3,
    Fault.CHECKPOINT_FLIPPED: 3,
    Fault.DISK_FULL: 2,
    Fault.REQUEUED: 2,
    Fault.DRAINED: 2,
    Fault.PREEMPTED: 2,
}
_SURVIVED_WITH_DAEMON = {
    Fault.NAN_ONCE: 3,
    Fault.HANG: 3,
    Fault.DAEMON_KILLED: 4,
    Fault.DAEMON_STOPPED: 4,
    Fault.TWO_DAEMONS: 3,
    Fault.HEAD_KILLED: 4,
}
_ENDING = {Fault.CANCELLED: 4, Fault.SCANCELLED: 3, Fault.CRASH_LOOP: 2, Fault.CONFIGURATION: 2, Fault.BLACK_HOLE: 2}
_ENDING_WITH_DAEMON = {Fault.NAN_ALWAYS: 2}
_QUEUED = {Fault.JOB_HELD: 2, Fault.PRIORITY: 2, Fault.CANCELLED: 2, Fault.SCANCELLED: 2}
_BEFORE = frozenset(
    {
        Fault.BLACK_HOLE,
        Fault.CRASH_LOOP,
        Fault.CONFIGURATION,
        Fault.NAN_ONCE,
        Fault.NAN_ALWAYS,
        Fault.HANG,
        Fault.TWO_DAEMONS,
    }
)
_SHAPES = ((2, 2), (2, 2), (1, 4))  # nodes and tasks per node: always four ranks, for one digest


def scenario_of(seed: int, *, daemon: bool = False) -> Scenario:
    """What `seed` plays."""
    random = Random(f"fleetctl chaos {seed} {daemon}")
    nodes, tasks_per_node = random.choice(_SHAPES)
    spares = random.choice((0, 0, 1))
    kind = random.choices(("survived", "queued", "ending"), (6, 2, 2))[0]
    planned: list[Planned] = []
    for number in range(random.choices((1, 2, 3), (4, 4, 2))[0] if kind != "ending" else random.choice((0, 0, 1))):
        planned.append(_of(random, _survived(daemon), recovering=number > 0))
    if kind == "ending":
        planned.append(_of(random, _ENDING | (_ENDING_WITH_DAEMON if daemon else {}), recovering=bool(planned)))
    if kind == "queued":
        planned.append(_plan(random, Fault.REQUEUED, Moment.TRAINING))
        fault = _choose(random, _QUEUED)
        planned.append(_plan(random, fault, random.choice((Moment.WAITING, Moment.CLEANING))))
    first = sorted(planned, key=lambda one: one.moment is not Moment.BEFORE)
    return Scenario(seed, daemon, nodes, tasks_per_node, spares, tuple(first))


def _survived(daemon: bool) -> dict[Fault, int]:
    return _SURVIVED | (_SURVIVED_WITH_DAEMON if daemon else {})


def _of(random: Random, weights: dict[Fault, int], *, recovering: bool) -> Planned:
    fault = _choose(random, weights)
    if fault in _BEFORE:
        return _plan(random, fault, Moment.BEFORE)
    moments = [Moment.TRAINING] * 3 + ([Moment.RECOVERING] * 3 if recovering else [Moment.STARTING])
    return _plan(random, fault, random.choice(moments))


def _plan(random: Random, fault: Fault, moment: Moment) -> Planned:
    most = 2.0 if moment in (Moment.CLEANING, Moment.WAITING, Moment.TRAINING) else 8.0
    return Planned(
        fault=fault,
        moment=moment,
        delay_s=round(random.uniform(0.0, most), 2),
        mend_s=round(random.choice((random.uniform(2.0, 12.0), random.uniform(15.0, 30.0))), 2),
        pick=round(random.random(), 6),
    )


def _choose(random: Random, weights: dict[Fault, int]) -> Fault:
    return random.choices(tuple(weights), tuple(weights.values()))[0]
