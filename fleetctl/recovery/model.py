"""The words of recovery: what was seen of a fleet, what happened to its runs, what is done about it and why. Pure.

Unknown is not empty: what was not observed is None. Times are aware and in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from fleetctl.rundir.history import History
from fleetctl.rundir.pulse import Pulse
from fleetctl.slurm.model import Job, JobRecord, Node
from fleetctl.submission.decide_requeue import Past

# What was seen


class Facts(Struct, frozen=True):
    """What a run's own folder says. `may_restart`: its spec lets Slurm requeue it; `own_format`: only its Checkpointer
    writes checkpoints, so that a rank of an older attempt changes nothing."""

    history: History
    max_failures: int
    may_restart: bool
    own_format: bool
    nodes: int  # that Slurm is asked for, spares included
    gpus: int  # of all of them
    opted_out: bool = False  # `recovery.daemon: false` in its spec
    past: Past | None = None  # what its events say besides (submission.decide_requeue.past_of); None: not told
    canary: bool = False  # its spec lets losses that are worse after a resume roll it back (recovery.canary)
    chain: bool = False  # its spec lets it go on after its time limit (recovery.chain)


class RunSeen(Struct, frozen=True):
    """One run, or one element of a sweep, as it was seen. `key` is its id, with `/INDEX` for an element.

    `facts` None: its folder could not be read (`trouble` says why). `pulse` None: its head has told nothing, or that
    could not be read. `jobs` None: Slurm was not heard; none: it knows of no job of this run. `restarts` and `gpus` are
    Slurm's, of the job now; None: not asked or not told. `evidence` is there where an attempt has ended and was looked
    into. `moved_at` is the newest sign of the training itself, by whichever clock, `is_full` whether its file system
    takes hardly anything more: both are asked for only where its head is silent, and None is not known.
    """

    key: str
    run_id: str
    task: int | None
    user: str
    path: str
    facts: Facts | None
    pulse: Pulse | None
    jobs: tuple[Job, ...] | None
    restarts: int | None = None
    gpus: int | None = None
    evidence: Evidence | None = None
    trouble: str = ""
    moved_at: datetime | None = None
    is_full: bool | None = None


class Finding(Struct, frozen=True):
    """A failed check of a node, from the shared folder of the node checks; `care` is a name of health.model.Care."""

    node: str
    at: datetime
    check: str
    care: str
    words: str


class Reservation(Struct, frozen=True):
    """A reservation with the flag MAINT (scontrol.1): its nodes are under maintenance in that time."""

    name: str
    nodes: frozenset[str]
    starts_at: datetime
    ends_at: datetime


class Snapshot(Struct, frozen=True):
    """What one pass saw. Sources that failed are None; `failed` says how (source -> one line)."""

    at: datetime
    cluster: str
    runs: tuple[RunSeen, ...] | None
    nodes: tuple[Node, ...] | None
    findings: tuple[Finding, ...] | None
    maintenance: tuple[Reservation, ...] | None
    switches: Mapping[str, str] = {}  # node -> its leaf switch or rack; empty: no topology is known
    controller_since: datetime | None = None  # when slurmctld started (BOOT_TIME)
    proved_dead: frozenset[str] = frozenset()  # nodes that the site's fence command has proved dead
    failed: Mapping[str, str] = {}


# What happened


class CauseClass(StrEnum):
    """Classes of recovery.md, each with one way to go on."""

    NODE = "node"  # the node died or Slurm lost it
    GPU = "gpu"
    NETWORK = "network"
    HANG = "hang"
    HOST = "host"  # file system, disk, kernel of one node
    HOST_MEMORY = "host_memory"  # out of memory
    GPU_MEMORY = "gpu_memory"
    DISK_FULL = "disk_full"
    NAN = "nan"
    LOSS = "loss"  # diverged after a recovery
    CHECKPOINT_LOAD = "checkpoint_load"
    CHECKPOINT_SAVE = "checkpoint_save"
    DATA = "data"
    RENDEZVOUS = "rendezvous"
    CONFIGURATION = "configuration"  # the same at once on any node
    PROGRAM = "program"  # a crash of the program that may pass
    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    REQUEUED = "requeued"  # somebody asked for it
    CANCELLED = "cancelled"
    MAINTENANCE = "maintenance"
    PROLOG = "prolog"  # the launch failed
    HEAD = "head"  # the process that leads the run is gone
    UNKNOWN = "unknown"


class Advice(StrEnum):
    """What one cause asks for."""

    SAME = "same"  # again, anywhere
    ELSEWHERE = "elsewhere"  # again, without the suspect node
    DRAIN = "drain"  # the same, and nobody else's job there either
    OLDER = "older"  # from an older checkpoint
    STOP = "stop"  # not again: tell its user
    SLURM = "slurm"  # Slurm does it
    NEVER = "never"  # it must not come back
    EARLIER = "earlier"  # it follows from something before it: no cause


class Suspected(Struct, frozen=True):
    """One cause of an attempt's end, the likeliest first in a list of them; `node` "" where none is known. `again` is
    what the same failure asks for once it came back although the advice was taken."""

    cause: CauseClass
    advice: Advice
    evidence: str  # one line, its source first
    node: str = ""
    again: Advice | None = None


class Evidence(Struct, frozen=True):
    """What was gathered about the end of one attempt. None: could not be had."""

    attempt: str
    records: tuple[JobRecord, ...] | None  # of Slurm's accounting, of this job
    log: bytes | None  # the end of what the steps printed in this attempt
    log_is_whole: bool = False
    failed_nodes: tuple[str, ...] = ()  # by Slurm's word and that of the node watch
    findings: tuple[Finding, ...] = ()


class Interruption(Struct, frozen=True):
    """The end of an attempt before the run's end. `attempt` is its name, `start` the key of that start of the job (see
    Action); `fingerprint` names the failure without the node, so that it is known again elsewhere."""

    key: str
    attempt: str
    start: str
    at: datetime
    causes: tuple[Suspected, ...]
    fingerprint: str
    nodes: tuple[str, ...]  # of the attempt
    progress_step: int | None  # of the newest checkpoint then
    ran_s: float | None = None  # how long the attempt had run
    user: str = ""  # of the run


# What is done


class Deed(StrEnum):
    """What the daemon can do to the world: one thing each."""

    EXCLUDE = "exclude"  # set ExcNodeList of a pending job: the union of what stands there and our nodes
    START_NOW = "start_now"  # StartTime=now of a pending job
    REQUEUE = "requeue"  # scontrol requeue Incomplete
    REQUEUE_ENDED = "requeue_ended"  # plain requeue of a job read as FAILED, TIMEOUT, NODE_FAIL or OUT_OF_MEMORY
    RESUBMIT = "resubmit"  # the next submission of the run
    ROLL_BACK = "roll_back"  # a word to its next start: at most this training step, not these checkpoints
    HOLD = "hold"  # a word to its next start, or its record: nothing restarts it until a person says so
    DRAIN = "drain"
    SET_DOWN = "set_down"  # of a node whose death is proved
    TELL = "tell"  # a person
    PAUSE = "pause"  # everything, as one incident


class Action(Struct, frozen=True):
    """One deed. `start` is the start of the job that it is about, CLUSTER/JOB/RESTARTS ("" for nodes and the fleet):
    the same deed on the same start is never done twice. `rule` names the rule of `decide` that asked for it."""

    deed: Deed
    key: str  # of the run; "" for nodes and the fleet
    start: str
    why: str
    rule: str
    evidence: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    at_most_step: int | None = None
    suspects: tuple[str, ...] = ()  # names of checkpoints

    @property
    def identity(self) -> str:
        """What makes two actions the same one."""
        step = "" if self.at_most_step is None else str(self.at_most_step)
        named = sorted(self.suspects)
        if self.deed is Deed.TELL:  # of one start there may be several things to tell
            named.append(self.rule)
        return "|".join((self.deed, self.key, self.start, ",".join(sorted(self.nodes)), step, *named))


class Outcome(StrEnum):
    """What came of an action."""

    OPEN = "open"  # written down; whether it was done is not known yet
    DONE = "done"  # and seen to have happened
    CHANGED = "changed"  # not done: the world was another one when it was looked at again
    REFUSED = "refused"  # Slurm said no
    FAILED = "failed"  # done, and not seen to have had its effect in time
    OBSERVED = "observed"  # it would have been done: the daemon only observes


class Done(Struct, frozen=True):
    """An entry of the journal. `detail` is one line; `cost_s` D, R and W of the interruption that it answered, once the
    run makes progress again (detection, restart, lost work; seconds)."""

    action: Action
    at: datetime
    outcome: Outcome
    detail: str = ""
    ended_at: datetime | None = None


class Incident(Struct, frozen=True):
    """Many failures at once, taken as one: the fleet is paused for them until a person, or quiet, ends it."""

    kind: str  # "class" or "switch"
    subject: str  # a CauseClass, or the switch's name
    since: datetime
    until: datetime | None
    keys: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


class Memory(Struct, frozen=True):
    """What the journal remembers, newest last. `seen_hung` and the like are in `notes`: small facts that a later pass
    needs (name -> text), such as since when something is suspected."""

    done: tuple[Done, ...] = ()
    interruptions: tuple[Interruption, ...] = ()
    incidents: tuple[Incident, ...] = ()
    paused_by: str = ""  # a person, and why; "": nobody
    paused_runs: Mapping[str, str] = {}  # key -> the same, of one run
    notes: Mapping[str, str] = {}


class Verdict(Struct, frozen=True):
    """What was decided about one run, or about the fleet (key ""): in sentences, for `daemon explain`. `is_quiet`:
    nothing goes on with it."""

    key: str
    rule: str
    why: str
    is_quiet: bool = False


class Decision(Struct, frozen=True):
    """What one pass decided: what to do now, in this order, and why nothing else. `interruptions`, `incidents` and
    `notes` are new ones, to be remembered; a note of "" is forgotten."""

    actions: tuple[Action, ...]
    verdicts: tuple[Verdict, ...]
    interruptions: tuple[Interruption, ...] = ()
    incidents: tuple[Incident, ...] = ()
    notes: Mapping[str, str] = {}
    look_again_s: float = 30.0
