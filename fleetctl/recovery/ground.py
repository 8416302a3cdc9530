"""What one pass stands on: what was seen and what is remembered, so that each rule can ask it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import replace

from fleetctl.recovery.model import Deed, Done, Facts, Incident, Interruption, Memory, RunSeen, Snapshot
from fleetctl.recovery.policy import Policy
from fleetctl.rundir.history import History, ended_well, last_attempts
from fleetctl.rundir.model import Attempt, SubmissionState
from fleetctl.rundir.view import RunState
from fleetctl.slurm.model import BaseState, Job, Node
from fleetctl.submission.decide_nodes import hosts, unresponsive
from fleetctl.submission.decide_requeue import Look, Past, Phase, phase

# What brings a run back: one of them for a start of its job, whichever.
COMEBACKS = frozenset({Deed.REQUEUE, Deed.REQUEUE_ENDED, Deed.RESUBMIT})
_GONE = frozenset({"DOWN", "FUTURE", "ERROR"})
DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"})


class Ground(Struct, frozen=True):
    """A snapshot and a memory with their indexes. `done` and `interruptions` are by run, oldest first."""

    snapshot: Snapshot
    memory: Memory
    policy: Policy
    nodes: Mapping[str, Node]
    usable: Mapping[str, int]  # partition -> how many of its nodes may be used; "": of all
    done: Mapping[str, tuple[Done, ...]]
    interruptions: Mapping[str, tuple[Interruption, ...]]

    def age_s(self, done: Done) -> float:
        return (self.snapshot.at - done.at).total_seconds()

    def did(self, key: str, start: str, *deeds: Deed) -> Done | None:
        """The newest of these deeds on this start that was done, or may have been."""
        wanted = self.policy.standing
        found = [d for d in self.done.get(key, ()) if d.action.start == start and d.action.deed in deeds]
        return next((d for d in reversed(found) if d.outcome in wanted), None)


class Case(Struct, frozen=True):
    """One run that was seen well enough to be decided on. `phase` None: Slurm has forgotten its job. `attempt` is its
    newest, `start` the key of the start of its job that stands now (Action)."""

    seen: RunSeen
    facts: Facts
    look: Look
    phase: Phase | None
    start: str
    attempt: Attempt | None

    @property
    def key(self) -> str:
        return self.seen.key

    @property
    def history(self) -> History:
        return self.facts.history

    @property
    def jobs(self) -> tuple[Job, ...]:
        return self.look.jobs or ()

    @property
    def came_back(self) -> bool:
        """Slurm has begun its job again since the newest attempt began, or it has another job."""
        if self.attempt is not None and not self.is_of_this_job:
            return True
        return self.look.restarts > self.look.past.restart_count

    @property
    def is_of_this_job(self) -> bool:
        """Whether the newest attempt belongs to the job that stands now."""
        if self.attempt is None or self.history.job_id is None:
            return False
        return self.attempt.job_id.partition("_")[0] == self.history.job_id.partition("_")[0]


def ground(snapshot: Snapshot, memory: Memory, policy: Policy) -> Ground:
    nodes = {node.name: node for node in snapshot.nodes or ()}
    empty = Ground(snapshot, memory, policy, nodes, _usable(nodes.values()), {}, {})
    return with_memory(empty, memory)


def with_memory(on: Ground, memory: Memory) -> Ground:
    """The same snapshot, with something more to remember."""
    done: dict[str, list[Done]] = {}
    for entry in memory.done:
        done.setdefault(entry.action.key, []).append(entry)
    interruptions: dict[str, list[Interruption]] = {}
    for one in sorted(memory.interruptions, key=lambda one: (one.at, one.key, one.attempt)):
        interruptions.setdefault(one.key, []).append(one)
    return replace(
        on,
        memory=memory,
        done={key: tuple(entries) for key, entries in done.items()},
        interruptions={key: tuple(ones) for key, ones in interruptions.items()},
    )


def _usable(nodes: Iterable[Node]) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for node in nodes:
        if node.base_state not in _GONE and not node.flags & DRAINED:
            found.update(("", *node.partitions))
    return found


def case_of(seen: RunSeen, on: Ground) -> Case | str:
    """The run as it can be decided on; else what is not known of it."""
    if seen.facts is None:
        return seen.trouble or "its folder was not read"
    history = seen.facts.history
    past = seen.facts.past or _careful_past(seen)
    attempt = last_attempts(history).get(seen.task)
    if history.state is not SubmissionState.SUBMITTED:
        look = Look(history, past, None, 0, seen.facts.may_restart)
        start = f"{on.snapshot.cluster}/submission {history.submission}/0"
        return Case(seen, seen.facts, look, None, start, attempt)
    if seen.jobs is None:
        return "Slurm tells nothing of it"
    if seen.jobs and seen.restarts is None:
        return "Slurm does not tell how often its job has begun again"
    if on.snapshot.nodes is None:
        return "Slurm tells nothing of its nodes"
    phases = {phase(job.state) for job in seen.jobs}
    if len(phases) > 1:
        return "the parts of its job are in different states"
    of_jobs = {node for job in seen.jobs for node in names(job.node_list)}
    lost = unresponsive((on.nodes[node] for node in of_jobs if node in on.nodes), of_jobs)
    unlisted = (node for node in of_jobs if node not in on.nodes)  # they may be anything
    lost = tuple(sorted({*lost, *unlisted}))
    look = Look(history, past, seen.jobs, seen.restarts or 0, seen.facts.may_restart, lost)
    return Case(seen, seen.facts, look, phases.pop() if phases else None, _start(seen, look, on), attempt)


def _start(seen: RunSeen, look: Look, on: Ground) -> str:
    if look.jobs:
        leader = min(look.jobs, key=lambda job: job.id)
        return f"{on.snapshot.cluster}/{leader.raw_id}/{look.restarts}"
    return f"{on.snapshot.cluster}/{look.history.job_id}/{look.past.restart_count}"


def _careful_past(seen: RunSeen) -> Past:
    """Where the events were not told in full: somebody may have asked for a requeue since."""
    return Past(seen.pulse.restart_count if seen.pulse is not None else 0, True, None)


def why_over(case: Case) -> tuple[str, str] | None:
    """Why nothing may be done to a run whatever happens: a rule and a sentence. None: something may be."""
    history, newest, task = case.history, case.attempt, case.seen.task
    bases = {job.state.base for job in case.jobs}
    if history.cancelled_at is not None or history.observed_end == RunState.CANCELLED:
        return "cancelled", "it was cancelled"
    if BaseState.CANCELLED in bases and task not in history.given_back:
        return "cancelled", "its job was cancelled"
    if history.observed_end == RunState.COMPLETED or bases == {BaseState.COMPLETED}:
        return "finished", "it has finished"
    if newest is not None and ended_well(newest):
        return "finished", "it has finished"
    if task in history.held:
        return "held", f"it is held: {history.held[task]}"
    return ("opted_out", "its spec wants no daemon (recovery.daemon)") if case.facts.opted_out else None


def names(text: str) -> tuple[str, ...]:
    """The nodes of a host list, sorted; of one that cannot be read, which users may write, none."""
    try:
        return tuple(sorted(hosts(text)))
    except ValueError:
        return ()


def job_nodes(case: Case) -> tuple[str, ...]:
    """Of the job now."""
    return tuple(sorted({node for job in case.jobs for node in names(job.node_list)}))


def old_nodes(case: Case) -> tuple[str, ...]:
    """All that the newest start's steps ran on, each restart inside the allocation on its own."""
    if case.attempt is None:
        return ()
    first = case.attempt.name.partition(".")[0]
    mine = [a for a in case.history.attempts if a.task == case.seen.task and a.name.partition(".")[0] == first]
    return tuple(sorted({node for attempt in mine for node in names(attempt.nodes)}))


def is_down(on: Ground, name: str) -> bool:
    return name in on.nodes and on.nodes[name].base_state in _GONE


def under_maintenance(on: Ground, nodes: Iterable[str]) -> str:
    """The reservation that has one of these nodes now; "": none has."""
    wanted, at = frozenset(nodes), on.snapshot.at
    for one in on.snapshot.maintenance or ():
        if one.starts_at <= at < one.ends_at and one.nodes & wanted:
            return one.name
    return ""


def open_incidents(memory: Memory) -> tuple[Incident, ...]:
    return tuple(one for one in memory.incidents if one.until is None)


def is_excused(on: Ground, one: Interruption) -> bool:
    """Whether it belongs to an incident, which is nobody's failure: once for the same failure of a run."""
    mine = [other for other in on.interruptions.get(one.key, ()) if other.fingerprint == one.fingerprint]
    first = next((other for other in mine if _in_incident(on, other)), None)
    return first is not None and (first.attempt, first.start) == (one.attempt, one.start)


def _in_incident(on: Ground, one: Interruption) -> bool:
    before = timedelta(seconds=on.policy.burst_s)
    for incident in on.memory.incidents:
        if not incident.since - before <= one.at <= (incident.until or on.snapshot.at):
            continue
        if one.key in incident.keys or (incident.nodes and any(c.node in incident.nodes for c in one.causes)):
            return True
    return False


def since_person(case: Case, found: Iterable[Interruption]) -> list[Interruption]:
    """Those since a person last asked for a requeue: that wish resets every brake."""
    asked = case.history.asked.get(case.seen.task, 0)
    order = {a.name: n for n, a in enumerate(a for a in case.history.attempts if a.task == case.seen.task)}
    return [one for one in found if order.get(one.attempt, asked) >= asked]
