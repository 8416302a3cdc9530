"""A job that runs: launch restarts it inside its allocation; here is what launch cannot do for itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from fleetctl.recovery.canary import jumped, misfit
from fleetctl.recovery.choice import Choice, do, leave, tell, wait
from fleetctl.recovery.decide_after import older
from fleetctl.recovery.decide_nodes import enough_left
from fleetctl.recovery.ended import dead_nodes
from fleetctl.recovery.ground import Case, Ground, is_down, job_nodes, names
from fleetctl.recovery.losses import onset
from fleetctl.recovery.model import Deed
from fleetctl.rundir.pulse import WAITS, Pulse
from fleetctl.slurm.model import BaseState, StateFlag
from fleetctl.submission.decide_requeue import Phase

SILENT = "silent/"  # + the run's key: since when this pulse has been the newest one
MOVED = "moved/"  # + the run's key: the newest sign of the training of a silent head, and since when it is that
_FIRST, _GOES_ON = "first", "goes_on"  # whether the sign has been seen to change
_GPUS = "without_gpus"
_MINUTE_S = 60.0


def silent_together(cases: Sequence[Case], on: Ground) -> frozenset[str]:
    """Runs whose heads fell silent in one minute with most others: a file system that takes no more words, and no
    heads' fault."""
    heads = {case.key: pulse for case in cases if case.phase is Phase.LIVES and (pulse := current(case)) is not None}
    long_s = on.policy.head_silent_s / 2
    silent = {case.key for case in cases if case.key in heads and (silence_s(case, on) or 0.0) >= long_s}
    most = max(1.0, on.policy.silent_share * len(heads))
    ends = sorted((heads[key].at, key) for key in silent)
    minute = timedelta(seconds=_MINUTE_S)
    return frozenset(key for at, key in ends if sum(abs(other - at) <= minute for other, _ in ends) > most)


def lives(case: Case, on: Ground, together: frozenset[str] = frozenset()) -> Choice:
    """What is done about a job that Slurm calls running. `together` as silent_together has it."""
    if any(job.state.base is BaseState.SUSPENDED or StateFlag.STOPPED in job.state.flags for job in case.jobs):
        return leave("suspended", "its job is suspended")
    if (found := _without_gpus(case, on)) is not None:
        return found
    pulse = current(case)
    if pulse is None:
        return _no_pulse(case, on)
    if (silent_s := silence_s(case, on)) is not None:
        return _silent(case, on, pulse, silent_s, together)
    return _heard(case, on, pulse)


def _heard(case: Case, on: Ground, pulse: Pulse) -> Choice:
    """Its head speaks."""
    if pulse.hung:
        return _stuck(case, on, pulse)
    if (step := onset(pulse.losses)) is not None:
        return _nan(case, on, step)
    if (worse := misfit(case, on)) is not None:
        return _worse(case, on, worse)
    if pulse.silent:
        rank = pulse.silent[0]
        why = f"rank {rank.rank} on {rank.node} is silent in {rank.phase}; launch looks into it"
        return wait("suspect_hang", why)
    if pulse.phase == WAITS:
        return wait("waits_for_nodes", f"its head on {pulse.host} waits: {_lost(case, on, pulse)}")
    if case.attempt is not None and case.attempt.ended_at is not None:
        return wait("restarts_inside", f"attempt {case.attempt.name} has ended; launch restarts it in its allocation")
    if (step := jumped(pulse)) is not None:
        return tell(case, on, "loss_jump", f"its loss has jumped at training step {step}, and stays so")
    return leave("healthy", f"attempt {pulse.attempt} is in {pulse.phase or 'no phase that it tells'}")


def current(case: Case) -> Pulse | None:
    """The pulse, if it is of the start that stands now."""
    pulse = case.seen.pulse
    if pulse is None or pulse.restart_count != case.look.restarts:
        return None
    mine = {str(number) for job in case.jobs for number in (job.id, job.raw_id, job.id.base)}
    return pulse if pulse.job_id in mine else None


def mark(pulse: Pulse | None, start: str) -> str:
    """What changes with each word of a head; of a head that never spoke, the start itself."""
    return start if pulse is None else f"{start}@{pulse.attempt}@{pulse.at.isoformat()}@{pulse.events}"


def is_stale(case: Case, on: Ground) -> bool:
    """Whether the newest word is an old one, or of a clock that cannot be trusted."""
    pulse = current(case)
    at = pulse.at if pulse is not None else max((job.start_time for job in case.jobs if job.start_time), default=None)
    return at is None or abs((on.snapshot.at - at).total_seconds()) > on.policy.pulse_stale_s


def silence_note(case: Case, on: Ground) -> str:
    """The note that the run needs; "": none. It counts by our own clock, whatever the head's says."""
    if not is_stale(case, on):
        return ""
    told = mark(current(case), case.start)
    before = on.memory.notes.get(SILENT + case.key, "")
    return before if before.partition(" ")[0] == told else f"{told} {on.snapshot.at.isoformat()}"


def silence_s(case: Case, on: Ground) -> float | None:
    """For how long nothing has been heard that is not old already; None: something has."""
    note = silence_note(case, on)
    if not note:
        return None
    return max(0.0, (on.snapshot.at - datetime.fromisoformat(note.partition(" ")[2])).total_seconds())


def moved_note(case: Case, on: Ground) -> str:
    """The same of the training under a silent head: what has changed from one pass to another shows that it goes on,
    whatever clock is written there."""
    if not is_stale(case, on):
        return ""
    before = on.memory.notes.get(MOVED + case.key, "")
    if case.seen.moved_at is None:
        return before
    sign = f"{case.start}@{case.seen.moved_at.isoformat()}"
    told = before.partition(" ")[0]
    if told == sign:
        return before
    how = _GOES_ON if told.partition("@")[0] == case.start else _FIRST
    return f"{sign} {on.snapshot.at.isoformat()} {how}"


def _no_pulse(case: Case, on: Ground) -> Choice:
    if any(StateFlag.CONFIGURING in job.state.flags or StateFlag.POWER_UP_NODE in job.state.flags for job in case.jobs):
        return wait("starts", "its nodes are made ready")
    silent_s = silence_s(case, on)
    if silent_s is None:
        return wait("starts", "it has just begun")
    if not case.came_back and case.attempt is not None:
        return _orphan(case, on, case.attempt.host) or leave("no_pulse", "its launch tells no pulse")
    if case.attempt is None and (orphan := _orphan(case, on, _batch_host(case))) is not None:
        return orphan  # launch died with it before its first word
    if silent_s >= on.policy.stuck_s:
        return tell(
            case, on, "never_spoke", f"its job runs, and its launch has told nothing for {silent_s / 60:.0f} min"
        )
    return wait("starts", "its launch has not spoken yet")


def _batch_host(case: Case) -> str:
    return min(case.jobs, key=lambda job: job.id).batch_host


def _silent(case: Case, on: Ground, pulse: Pulse, silent_s: float, together: frozenset[str]) -> Choice:
    if (orphan := _orphan(case, on, pulse.host)) is not None:
        return orphan
    if case.look.unresponsive:
        return wait("silent", f"its head is silent; {_unreached(case)}")
    if silent_s < on.policy.head_silent_s:
        return wait("silent", f"its head on {pulse.host} has told nothing new for {silent_s:.0f} s")
    why = f"its head on {pulse.host} has told nothing for {silent_s / 60:.0f} min, and Slurm reaches all of its nodes"
    if case.key in together:
        return tell(case, on, "silent_together", f"{why}; {len(together)} heads are silent: is their file system full?")
    return _still(case, on, why)


def _still(case: Case, on: Ground, why: str) -> Choice:
    """A stopped head does not stop the ranks, and a full disk takes no pulse of a training that is well: nothing is
    ended that is not seen to stand still."""
    note = moved_note(case, on).split(" ")
    if case.seen.is_full:
        return tell(case, on, "disk_full", f"{why}; the disk is full, and the training may go on")
    if case.seen.is_full is None or case.seen.moved_at is None or len(note) != 3:
        return tell(case, on, "silent_unknown", f"{why}; whether the training goes on is not known")
    still_s = (on.snapshot.at - datetime.fromisoformat(note[1])).total_seconds()
    if still_s >= on.policy.head_silent_s:
        return _requeue(case, on, "head_silent", f"{why}; nor has its training moved for {still_s / 60:.0f} min")
    if note[2] == _GOES_ON:
        return tell(case, on, "silent_goes_on", f"{why}; its head is silent and the training goes on")
    return wait("silent", f"{why}; it is watched whether the training goes on")


def _orphan(case: Case, on: Ground, host: str) -> Choice | None:
    """The batch host is gone, and with it the script; nobody has taken over."""
    if not host or (host in job_nodes(case) and not is_down(on, host)):
        return None
    if host not in on.nodes:  # a host may have another name than its node
        return None
    if case.look.unresponsive:
        return wait("orphan", f"its head's host {host} is lost; {_unreached(case)}")
    dead = frozenset(node for node in dead_nodes(case, on) if enough_left(case, on, frozenset([node])))
    return _requeue(case, on, "orphan", f"its head's host {host} is down, and nobody leads the job", nodes=dead)


def _unreached(case: Case) -> str:
    return f"Slurm does not reach {', '.join(case.look.unresponsive)}, and must see first that it is down"


def _requeue(case: Case, on: Ground, rule: str, why: str, nodes: frozenset[str] = frozenset()) -> Choice:
    if not case.facts.may_restart:
        return tell(case, on, rule, f"{why}; its spec does not let Slurm requeue it")
    return do(case, Deed.REQUEUE, rule, why, nodes=nodes if enough_left(case, on, nodes) else frozenset())


def _lost(case: Case, on: Ground, pulse: Pulse) -> str:
    """What a head waits for that starts nothing."""
    lost = sorted({*case.look.unresponsive, *(node for node in pulse.lost_nodes if not is_down(on, node))})
    if not lost:
        return "Slurm is to tell which of its nodes are left"
    return f"Slurm must call {', '.join(lost)} DOWN, or reach it again, before anything can start"


def _without_gpus(case: Case, on: Ground) -> Choice | None:
    """22.05.8 starts a job without its GPUs that lost a node at the wrong moment. One that shrank has fewer nodes."""
    gpus, has = case.facts.gpus, case.seen.gpus
    nodes = sum(job.node_count or len(names(job.node_list)) for job in case.jobs)
    if not gpus or has is None or has >= gpus or nodes < case.facts.nodes or not case.look.restarts:
        return None
    why = f"it came back with {has} of {gpus} GPUs"
    before = [entry for entry in on.done.get(case.key, ()) if entry.outcome in on.policy.standing]
    if any(entry.action.rule == _GPUS and entry.action.start != case.start for entry in before):
        return do(case, Deed.HOLD, "without_gpus_again", f"{why}, again: slurmctld lost count of them")
    if case.look.unresponsive:
        return wait(_GPUS, f"{why}; {_unreached(case)}")
    return _requeue(case, on, _GPUS, why)


def _stuck(case: Case, on: Ground, pulse: Pulse) -> Choice:
    """The head has found its attempt hung and ends it; where even that hangs, Slurm ends it all."""
    since = pulse.suspected_at or pulse.at
    stuck_s = (on.snapshot.at - since).total_seconds()
    if stuck_s < on.policy.stuck_s or case.look.unresponsive:
        return wait("hung", f"attempt {pulse.attempt} hangs in {pulse.phase}; its head ends it")
    return _requeue(case, on, "hung_for_good", f"its head cannot end the hung attempt {pulse.attempt}")


def _nan(case: Case, on: Ground, step: int) -> Choice:
    return _from_older(case, on, "nan", f"its losses are no numbers since training step {step}", None)


def _worse(case: Case, on: Ground, what: str) -> Choice:
    """Another order of the data, or a new rate of learning, looks the same: only who asked for it is rolled back."""
    resumed = case.attempt.resume_step if case.attempt is not None else None
    if not case.facts.canary or resumed is None:
        return tell(case, on, "canary", f"{what} (recovery.canary is not set: it goes on)")
    return _from_older(case, on, "canary", what, resumed - 1)


def _from_older(case: Case, on: Ground, rule: str, what: str, at_most: int | None) -> Choice:
    """The word to its next start first, and then that start."""
    rolled = on.did(case.key, case.start, Deed.ROLL_BACK)
    if rolled is None:
        found = older(case, on, None, what, at_most=at_most)
        return found if found is not None else tell(case, on, rule, what)
    if case.look.unresponsive:
        return wait(rule, f"{what}; {_unreached(case)}")
    return _requeue(case, on, rule, f"{what}; it goes on from at most {rolled.action.at_most_step}")
