"""A simulated fleet on a virtual clock, for what recovery decides: Slurm, launch, trainings, people, and a daemon that
is killed at the worst moments. Its Slurm does the harm that the real one does (22.05.8), and says when it did.

`python -m tests.recovery_world A B` plays the histories of seeds A..B-1 and prints what came of them.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from msgspec.structs import replace

from fleetctl.errors import FleetctlError
from fleetctl.launch.decide import brake as launch_brake
from fleetctl.recovery.decide import decide, wanted
from fleetctl.recovery.model import (
    Action,
    Advice,
    CauseClass,
    Decision,
    Deed,
    Done,
    Evidence,
    Facts,
    Incident,
    Interruption,
    Memory,
    Outcome,
    Reservation,
    RunSeen,
    Snapshot,
    Suspected,
)
from fleetctl.recovery.order import note_of
from fleetctl.recovery.policy import Deeds, Mode, Policy
from fleetctl.rundir.history import BY_DAEMON, History
from fleetctl.rundir.model import Attempt, Ending, RunKind, RunRecord, SubmissionState
from fleetctl.rundir.pulse import Pulse
from fleetctl.slurm.model import AdminLevel, BaseState, Job, JobId, JobState, Node, StateFlag
from fleetctl.submission import decide_requeue
from fleetctl.submission.decide_requeue import Look, Past, Wanted

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
CLUSTER = "c"
SLURMD_TIMEOUT_S, BEGIN_S, EPILOG_S, MIN_JOB_AGE_S = 300.0, 121.0, 10.0, 300.0
CHECKPOINT_STEPS = 60
FOREIGN = "admin: fan"


class Kind(StrEnum):
    """What a training does when it is left alone. One step a second."""

    GOOD = "good"
    CONFIG = "config"  # fails soon, on any node
    CRASH = "crash"  # always at the same step
    FLAKY = "flaky"  # fails once in a while, and comes forward
    NAN = "nan"  # once; what was saved after that is poisoned
    NAN_ALWAYS = "nan_always"
    TORN = "torn"  # its newest checkpoint cannot be loaded; an older one can


class State(StrEnum):
    """Of a job."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETING = "completing"
    ENDED = "ended"
    FORGOTTEN = "forgotten"


class Machine:
    """One node."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.faulty = False
        self.down = False
        self.reason = ""
        self.drained = False
        self.silent_since = 0.0
        self.back_at: float | None = None

    def row(self, at: datetime) -> Node:
        flags = frozenset(["DRAIN"] * self.drained + ["NOT_RESPONDING"] * (not self.alive))
        base = "DOWN" if self.down else "IDLE"
        return Node(self.name, base, flags, self.reason, "", at if self.reason else None, 8, 0, "", 8, 1000, ("main",))


class Run:
    """One run, its job and its training."""

    def __init__(self, key: str, user: str, kind: Kind, need: int, target: int, *, no_kill: bool, inside: bool) -> None:
        self.key, self.user, self.kind, self.need, self.target = key, user, kind, need, target
        self.no_kill, self.inside = no_kill, inside
        self.trouble_at = 0
        self.job_id, self.submission, self.restarts = 0, 1, 0
        self.state, self.base = State.PENDING, BaseState.PENDING
        self.reason, self.begin_at, self.until = "Priority", 0.0, 0.0
        self.then_pending = False
        self.excluded: frozenset[str] = frozenset()
        self.alloc: tuple[str, ...] = ()
        self.head: str | None = None
        self.attempts: list[Attempt] = []
        self.counts: list[int] = []  # Slurm's restarts at each attempt
        self.causes: dict[str, Suspected] = {}
        self.step, self.resume, self.began_at = 0, 0, 0.0
        self.checkpoint: int | None = None
        self.poison: int | None = None
        self.pulse: Pulse | None = None
        self.is_mute = False  # its head is stopped, and the training goes on
        self.moved_at = BEGAN
        self.held: list[str] = []
        self.holds_lifted = 0
        self.asked, self.asks = 0, 0
        self.asked_since = False
        self.cancelled, self.recorded_cancel = False, False
        self.word_hold, self.at_most = "", None  # type: tuple[str, int | None]
        self.not_started = ""
        self.failures = 0  # that were the machine's or Slurm's

    @property
    def is_held(self) -> bool:
        return len(self.held) > self.holds_lifted

    @property
    def finished(self) -> bool:
        return bool(self.attempts) and self.attempts[-1].ending is Ending.FINISHED

    def history(self) -> History:
        record = RunRecord(
            self.key, self.key, self.user, BEGAN, RunKind.PLAIN, "d", "/s", "/w", self.need, 1, CLUSTER, "0"
        )
        return History(
            record,
            self.submission,
            SubmissionState.SUBMITTED,
            str(self.job_id),
            CLUSTER,
            BEGAN,
            "",
            (),
            BEGAN if self.recorded_cancel else None,
            None,
            {None: self.not_started} if self.not_started else {},
            tuple(self.attempts),
            held={None: self.held[-1]} if self.is_held else {},
            asked={None: self.asked} if self.asks else {},
        )

    def past(self) -> Past:
        mine = [c for a, c in zip(self.attempts, self.counts, strict=True) if a.job_id == str(self.job_id)]
        return Past(max(mine, default=0), self.asked_since, None)


class World:
    """The fleet. Time is in seconds since BEGAN."""

    def __init__(self, rng: random.Random, nodes: int, runs: list[Run]) -> None:
        self.rng, self.now_s = rng, 0.0
        self.nodes = {f"n{i}": Machine(f"n{i}") for i in range(nodes)}
        self.runs = {run.key: run for run in runs}
        self.harms: list[str] = []
        self.reservations: list[Reservation] = []
        self.controller_since = BEGAN - timedelta(hours=1)
        self.proved = False
        self.begin_s = BEGIN_S
        self._jobs = 100
        for run in runs:
            self._new_job(run)

    @property
    def now(self) -> datetime:
        return BEGAN + timedelta(seconds=self.now_s)

    def _new_job(self, run: Run) -> None:
        self._jobs += 1
        run.job_id, run.restarts = self._jobs, 0
        run.state, run.base, run.reason = State.PENDING, BaseState.PENDING, "Priority"
        run.begin_at, run.alloc, run.head, run.pulse = self.now_s, (), None, None

    # Slurm

    def advance(self, duration_s: float) -> None:
        until = self.now_s + duration_s
        while self.now_s < until:
            step_s = min(5.0, until - self.now_s)
            self.now_s += step_s
            for machine in self.nodes.values():
                self._node(machine)
            for run in self.runs.values():
                self._job(run, step_s)

    def _node(self, machine: Machine) -> None:
        if machine.back_at is not None and self.now_s >= machine.back_at:
            machine.alive, machine.down, machine.back_at = True, False, None
            machine.reason = "" if machine.reason == "Not responding" else machine.reason
        if not machine.alive and not machine.down and self.now_s - machine.silent_since >= SLURMD_TIMEOUT_S:
            self.set_down(machine)

    def set_down(self, machine: Machine) -> None:
        machine.down = True
        machine.reason = machine.reason or "Not responding"
        for run in self.runs.values():
            if machine.name not in run.alloc or run.state is not State.RUNNING:
                continue
            run.failures += 1
            if run.no_kill:
                run.alloc = tuple(node for node in run.alloc if node != machine.name)
                if run.head is not None and run.head in run.alloc:
                    self._end_attempt(run, Ending.NODE_LOST, 1, _node_lost(machine.name))
                    self.requeue(run, by_job=True)
            else:
                if run.head is not None and self.nodes[run.head].alive:
                    self._end_attempt(run, Ending.NODE_LOST, 1, _node_lost(machine.name))
                self._blame(run, _node_lost(machine.name))
                self._leave(run)
                run.state, run.base, run.restarts = State.PENDING, BaseState.PENDING, run.restarts + 1
                run.reason, run.begin_at = "BeginTime", self.now_s + self.begin_s

    def _leave(self, run: Run) -> None:
        run.alloc, run.head = (), None

    def _job(self, run: Run, step_s: float) -> None:
        if run.state is State.COMPLETING and self.now_s >= run.until:
            self._leave(run)
            run.state = State.PENDING if run.then_pending else State.ENDED
            run.until = self.now_s
            if run.then_pending:
                run.base, run.reason, run.begin_at = BaseState.PENDING, "BeginTime", self.now_s + self.begin_s
        if run.state is State.ENDED and self.now_s - run.until > MIN_JOB_AGE_S:
            run.state = State.FORGOTTEN
        if run.state is State.PENDING:
            self._schedule(run)
        elif run.state is State.RUNNING and run.head is not None:
            self._train(run, step_s)

    def _schedule(self, run: Run) -> None:
        if run.reason.startswith("JobHeld"):
            return
        if self.now_s < run.begin_at:
            return
        busy = {node for other in self.runs.values() for node in other.alloc}
        usable = [
            m for m in self.nodes.values() if m.alive and not m.down and not m.drained and m.name not in run.excluded
        ]
        free = [machine.name for machine in usable if machine.name not in busy]
        run.reason = "Resources"
        if sum(name not in run.excluded for name in self.nodes) < run.need:
            run.reason = "BadConstraints"
        if len(free) < run.need:
            return
        run.alloc = tuple(free[: run.need])
        run.state, run.base, run.reason = State.RUNNING, BaseState.RUNNING, "None"
        self._start(run)

    def _start(self, run: Run) -> None:
        if run.cancelled:
            self.harms.append(f"{run.key} was cancelled and started again")
        if run.word_hold:
            run.held.append(run.word_hold)
        if run.recorded_cancel or run.is_held:
            run.not_started = run.not_started or "it is held, or was cancelled"
            self._end_job(run, BaseState.FAILED)
            return
        run.head, run.is_mute = run.alloc[0], False
        self._begin_attempt(run, restart=False)

    # Launch and the training

    def _begin_attempt(self, run: Run, *, restart: bool) -> None:
        if restart:
            number, sub = (int(part) for part in run.attempts[-1].name.split("."))
            name = f"{number}.{sub + 1}"
        else:
            name = f"{int(run.attempts[-1].name.split('.')[0]) + 1 if run.attempts else 1}.0"
        if run.at_most is not None and run.checkpoint is not None:
            run.checkpoint = min(run.checkpoint, run.at_most // CHECKPOINT_STEPS * CHECKPOINT_STEPS)
        run.at_most, run.not_started = None, ""
        run.resume = run.checkpoint or 0
        if run.poison is not None and run.resume < run.poison and run.kind is Kind.NAN:
            run.poison, run.kind = None, Kind.GOOD
        run.step, run.began_at, run.asked_since = run.resume, self.now_s, False
        run.attempts.append(
            Attempt(
                name,
                str(run.job_id),
                run.head or "",
                self.now,
                resume_step=run.resume,
                nodes=",".join(sorted(run.alloc)),
            )
        )
        run.counts.append(run.restarts)
        self._beat(run)

    def _beat(self, run: Run) -> None:
        if run.is_mute:
            return
        nan = run.poison is not None and run.step >= run.poison
        steps = range(max(run.resume, run.step - 310), run.step + 1, 10)
        losses = tuple((step, None if nan and step >= (run.poison or 0) else 1.0) for step in steps)
        run.pulse = Pulse(
            run.attempts[-1].name,
            str(run.job_id),
            run.restarts,
            run.head or "",
            self.now,
            len(run.attempts),
            "step",
            training_step=run.step,
            checkpoint_step=run.checkpoint,
            losses=losses,
        )

    def _train(self, run: Run, step_s: float) -> None:
        if run.head is not None and not self.nodes[run.head].alive:
            return  # the head is dead: nobody says so
        if any(not self.nodes[node].alive for node in run.alloc):
            self._beat(run)
            return  # launch waits for Slurm's word
        run.step += int(step_s)
        run.moved_at = self.now
        if run.step % CHECKPOINT_STEPS < step_s and run.step > (run.checkpoint or 0):
            run.checkpoint = run.step // CHECKPOINT_STEPS * CHECKPOINT_STEPS
        if run.kind in (Kind.NAN, Kind.NAN_ALWAYS) and run.step >= run.trouble_at and run.poison is None:
            run.poison = run.step
        if run.step >= run.target and run.poison is None:
            self._end_attempt(run, Ending.FINISHED, 0, None)
            self._end_job(run, BaseState.COMPLETED)
            return
        if (cause := self._fails(run)) is not None:
            self._failed(run, cause)
            return
        self._beat(run)

    def _fails(self, run: Run) -> Suspected | None:
        ran_s = self.now_s - run.began_at
        if run.kind is Kind.CONFIG and ran_s >= 20:
            return Suspected(CauseClass.CONFIGURATION, Advice.STOP, "log: no module named x")
        if run.kind is Kind.CRASH and run.step >= run.trouble_at:
            return Suspected(CauseClass.PROGRAM, Advice.SAME, "log: index out of range")
        if run.kind is Kind.TORN and run.resume and run.resume > run.trouble_at and ran_s >= 10:
            return Suspected(CauseClass.CHECKPOINT_LOAD, Advice.OLDER, "log: cannot be loaded")
        if run.kind is Kind.FLAKY and ran_s >= 900 and self.rng.random() < 0.01:
            return Suspected(CauseClass.UNKNOWN, Advice.SAME, "log: nothing known", again=Advice.ELSEWHERE)
        bad = next((node for node in run.alloc if self.nodes[node].faulty), None)
        if bad is not None and ran_s >= 60:
            run.failures += 1
            return Suspected(CauseClass.GPU, Advice.DRAIN, "log: uncorrectable ECC error", node=bad)
        return None

    def _failed(self, run: Run, cause: Suspected) -> None:
        self._end_attempt(run, Ending.FAILED, 1, cause)
        if not run.inside:
            self._end_job(run, BaseState.FAILED)
            return
        why = launch_brake([one for one in run.attempts if one.ended_at], 3)
        if why is not None:
            run.held.append(f"launch: {why}")
            self._end_job(run, BaseState.FAILED)
        else:
            self._begin_attempt(run, restart=True)

    def _end_attempt(self, run: Run, ending: Ending, code: int, cause: Suspected | None) -> None:
        newest = run.attempts[-1]
        if newest.ended_at is not None:
            return
        failure = cause.evidence if cause is not None and ending is Ending.FAILED else None
        run.attempts[-1] = replace(
            newest,
            ended_at=self.now,
            exit_code=code,
            ending=ending,
            failure=failure,
            terminated=ending is Ending.TOLD,
            progress_step=run.checkpoint,
        )
        self._blame(run, cause)

    def _blame(self, run: Run, cause: Suspected | None) -> None:
        if cause is not None and run.attempts:
            run.causes.setdefault(run.attempts[-1].name, cause)

    def _end_job(self, run: Run, base: BaseState) -> None:
        run.base, run.state, run.then_pending, run.until = base, State.COMPLETING, False, self.now_s + EPILOG_S

    # Verbs

    def requeue(self, run: Run, *, by_job: bool = False) -> bool:
        """`scontrol requeue Incomplete`."""
        if run.state is not State.RUNNING:
            return False
        if any(not self.nodes[node].alive and not self.nodes[node].down for node in run.alloc):
            self.harms.append(f"{run.key} was requeued while Slurm did not reach a node of it")
        if run.head is not None and self.nodes[run.head].alive:
            asked = Suspected(CauseClass.REQUEUED, Advice.SLURM, "slurm: requeued")
            self._end_attempt(run, Ending.TOLD, 0, asked)
        run.restarts += 1
        run.state, run.then_pending, run.until = State.COMPLETING, True, self.now_s + EPILOG_S
        run.head, run.asked_since = None, True
        return True

    def requeue_ended(self, run: Run) -> bool:
        if run.state is not State.ENDED:
            return False
        if run.base is BaseState.CANCELLED:
            self.harms.append(f"{run.key} was cancelled and requeued")
        run.restarts += 1
        run.state, run.base, run.reason = State.PENDING, BaseState.PENDING, "BeginTime"
        run.begin_at, run.asked_since = self.now_s + self.begin_s, True
        return True

    def resubmit(self, run: Run) -> None:
        if run.state in (State.PENDING, State.RUNNING):
            self.harms.append(f"{run.key} has two jobs")
        run.submission += 1
        self._new_job(run)

    def cancel(self, run: Run, *, recorded: bool) -> None:
        if run.state not in (State.PENDING, State.RUNNING) and not (run.state is State.COMPLETING and run.then_pending):
            return
        run.cancelled, run.recorded_cancel = True, run.recorded_cancel or recorded
        if run.head is not None and self.nodes[run.head].alive:
            self._end_attempt(run, Ending.TOLD, 0, Suspected(CauseClass.CANCELLED, Advice.NEVER, "slurm: cancelled"))
        self._end_job(run, BaseState.CANCELLED)

    def person_requeues(self, run: Run) -> None:
        if run.cancelled or run.finished or run.state not in (State.ENDED, State.FORGOTTEN):
            return
        run.asked, run.asks, run.asked_since = len(run.attempts), run.asks + 1, True
        run.holds_lifted, run.word_hold, run.not_started = len(run.held), "", ""
        if run.state is not State.ENDED or not self.requeue_ended(run):
            self.resubmit(run)

    def preempt(self, run: Run) -> None:
        if run.state is State.RUNNING and all(self.nodes[node].alive for node in run.alloc):
            if run.head is not None:
                self._end_attempt(run, Ending.TOLD, 0, _preempted())
            run.restarts += 1
            run.head = None
            run.state, run.then_pending, run.until = State.COMPLETING, True, self.now_s + EPILOG_S

    def kill_head(self, run: Run) -> None:
        """The batch script dies, and with it the job: FAILED, with the attempt never ended."""
        if run.state is State.RUNNING and run.head is not None:
            self._blame(run, Suspected(CauseClass.HEAD, Advice.SAME, "record: its head is gone"))
            run.failures += 1
            run.head = None
            self._end_job(run, BaseState.FAILED)

    def silence_head(self, run: Run) -> None:
        """The head hangs: the job runs on, and nobody leads it."""
        if run.state is State.RUNNING and run.head is not None:
            self._blame(run, Suspected(CauseClass.HEAD, Advice.SAME, "record: its head is silent"))
            run.failures += 1
            run.head = None

    def stands(self, run: Run) -> bool:
        return (self.now - run.moved_at).total_seconds() > 60

    def kill_node(self, name: str, back_s: float) -> None:
        machine = self.nodes[name]
        if machine.alive:
            machine.alive, machine.silent_since, machine.back_at = False, self.now_s, self.now_s + back_s

    # What the daemon sees

    def job_of(self, run: Run) -> Job | None:
        if run.state is State.FORGOTTEN:
            return None
        state = JobState(run.base)
        if run.state is State.COMPLETING:
            state = JobState(None, frozenset({StateFlag.COMPLETING}))
        begin = BEGAN + timedelta(seconds=run.begin_at)
        return Job(
            id=JobId(run.job_id),
            raw_id=run.job_id,
            pending_tasks="",
            name=run.key,
            user=run.user,
            state=state,
            reason=run.reason,
            comment="",
            partition="main",
            account="",
            node_list=",".join(run.alloc),
            node_count=len(run.alloc) or run.need,
            submit_time=None,
            start_time=begin,
            end_time=None,
            time_limit_s=None,
            command="",
            work_dir="",
            dependency="",
            excluded_nodes=",".join(sorted(run.excluded)),
            priority=1,
            gres_per_node="",
        )

    def seen(self, run: Run, *, blind: frozenset[str] = frozenset(), evidence: str | None = None) -> RunSeen:
        job = self.job_of(run)
        facts = Facts(run.history(), 3, True, True, run.need, 0, past=run.past())
        found = None
        if evidence is not None:
            cause = run.causes.get(evidence, Suspected(CauseClass.UNKNOWN, Advice.SAME, "nothing known"))
            if cause.cause is CauseClass.UNKNOWN and run.base is BaseState.CANCELLED:
                cause = Suspected(CauseClass.CANCELLED, Advice.NEVER, "slurm: cancelled")
            log = "|".join((cause.cause, cause.advice, cause.evidence, cause.node, cause.again or ""))
            found = Evidence(evidence, (), log.encode())
        return RunSeen(
            run.key,
            run.key,
            None,
            run.user,
            f"/runs/{run.key}",
            None if "facts" in blind else facts,
            run.pulse,
            None if "jobs" in blind else () if job is None else (job,),
            restarts=run.restarts if job is not None else None,
            evidence=found,
            moved_at=None if "signs" in blind else run.moved_at,
            is_full=None if "signs" in blind else False,
        )

    def look(self, blind: frozenset[str], evidence: dict[str, str]) -> Snapshot:
        machines = self.nodes.values()
        return Snapshot(
            at=self.now,
            cluster=CLUSTER,
            runs=tuple(self.seen(run, blind=blind, evidence=evidence.get(run.key)) for run in self.runs.values()),
            nodes=None if "nodes" in blind else tuple(machine.row(self.now) for machine in machines),
            findings=None if "findings" in blind else (),
            maintenance=None if "maintenance" in blind else tuple(self.reservations),
            controller_since=None if "controller" in blind else self.controller_since,
            proved_dead=frozenset(m.name for m in machines if self.proved and not m.alive),
        )


def classify(seen: RunSeen, attempt: Attempt, evidence: Evidence) -> tuple[tuple[Suspected, ...], str]:
    if not evidence.log:
        return (Suspected(CauseClass.UNKNOWN, Advice.SAME, "nothing known"),), "unknown"
    cause, advice, text, node, again = evidence.log.decode().split("|")
    found = Suspected(CauseClass(cause), Advice(advice), text, node, Advice(again) if again else None)
    return (found,), f"{cause}: {text}"


def _node_lost(node: str) -> Suspected:
    return Suspected(CauseClass.NODE, Advice.ELSEWHERE, f"slurm: {node} is down", node=node)


def _preempted() -> Suspected:
    return Suspected(CauseClass.PREEMPTED, Advice.SLURM, "slurm: preempted")


class Killed(Exception):
    """The daemon was killed here."""


class Daemon:
    """The loop and the journal, in memory: what recovery.journal and recovery.act do, on the simulated fleet."""

    def __init__(self, world: World, policy: Policy) -> None:
        self.world, self.policy = world, policy
        self.done: list[Done] = []
        self.interruptions: dict[tuple[str, str, str], Interruption] = {}
        self.incidents: dict[tuple[str, str], Incident] = {}
        self.notes: dict[str, str] = {}
        self.paused_by = ""
        self.look_again_s = 30.0
        self.dies: Callable[[str], bool] = lambda moment: False
        self.finds_out: Callable[[], bool] = lambda: True  # whether the evidence of an end is there already
        self.checks: list[Callable[[Snapshot, Memory, Decision], None]] = []

    def memory(self) -> Memory:
        return Memory(
            done=tuple(self.done),
            interruptions=tuple(self.interruptions.values()),
            incidents=tuple(self.incidents.values()),
            paused_by=self.paused_by,
            notes=dict(self.notes),
        )

    def once(self, blind: frozenset[str] = frozenset()) -> None:
        try:
            self._pass(blind)
        except Killed:
            self.settle()

    def _pass(self, blind: frozenset[str]) -> None:
        evidence = wanted(self.world.look(blind, {}), self.memory(), self.policy)
        evidence = {key: name for key, name in evidence.items() if self.finds_out()}
        snapshot, memory = self.world.look(blind, evidence), self.memory()
        decision = decide(snapshot, memory, self.policy, classify)
        for check in self.checks:
            check(snapshot, memory, decision)
        self.look_again_s = decision.look_again_s
        self._remember(decision)
        for action in decision.actions:
            self._one(action)

    def _remember(self, decision: Decision) -> None:
        for one in decision.interruptions:
            self.interruptions[(one.key, one.attempt, one.start)] = one
        for incident in decision.incidents:
            self.incidents[(incident.kind, incident.subject)] = incident
        self.notes.update(decision.notes)
        self.notes = {name: text for name, text in self.notes.items() if text}
        self._may_die("remembered")

    def _one(self, action: Action) -> None:
        begun = Done(action, self.world.now, Outcome.OPEN)
        self.done.append(begun)
        self._may_die("begun")
        outcome = self.act(action)
        self._may_die("acted")
        self.done[-1] = replace(begun, outcome=outcome, ended_at=self.world.now)

    def _may_die(self, moment: str) -> None:
        if self.dies(moment):
            raise Killed(moment)

    def settle(self) -> None:
        """Look what became of what is open; nothing is done again."""
        for index, entry in enumerate(self.done):
            if entry.outcome is Outcome.OPEN:
                self.done[index] = replace(entry, outcome=self._became(entry.action))

    def _became(self, action: Action) -> Outcome:
        run = self.world.runs.get(action.key)
        if run is None:
            return Outcome.DONE
        _, job_id, restarts = action.start.rsplit("/", 2)
        there = {
            Deed.REQUEUE: lambda: run.restarts > int(restarts),
            Deed.REQUEUE_ENDED: lambda: run.restarts > int(restarts),
            Deed.RESUBMIT: lambda: run.job_id != int(job_id),
            Deed.HOLD: lambda: run.is_held or bool(run.word_hold),
            Deed.ROLL_BACK: lambda: run.at_most is not None,
            Deed.EXCLUDE: lambda: set(action.nodes) <= run.excluded,
            Deed.START_NOW: lambda: run.begin_at <= self.world.now_s,
        }
        return Outcome.DONE if there.get(action.deed, lambda: False)() else Outcome.FAILED

    def act(self, action: Action) -> Outcome:
        if action.deed in (Deed.TELL, Deed.PAUSE):
            return Outcome.DONE
        if action.deed is Deed.DRAIN:
            for node in action.nodes:
                machine = self.world.nodes[node]
                if machine.reason == FOREIGN:
                    self.world.harms.append(f"{node} was drained over an admin's word")
                machine.drained, machine.reason = True, "fleetctl: lemon"
            return Outcome.DONE
        if action.deed is Deed.SET_DOWN:
            for node in action.nodes:
                if self.world.nodes[node].alive:
                    self.world.harms.append(f"{node} lives and was set down")
                self.world.set_down(self.world.nodes[node])
            return Outcome.DONE
        run = self.world.runs[action.key]
        if action.start != f"{CLUSTER}/{run.job_id}/{run.restarts}" or run.recorded_cancel or run.is_held:
            return Outcome.CHANGED if run.state is not State.FORGOTTEN else self._on_run(action, run)
        return self._on_run(action, run)

    def _on_run(self, action: Action, run: Run) -> Outcome:
        waits = run.state is State.PENDING
        match action.deed:
            case Deed.REQUEUE | Deed.REQUEUE_ENDED | Deed.RESUBMIT:
                return self._bring_back(action, run)
            case Deed.HOLD:
                if self.policy.mode is Mode.OWNER:
                    run.held.append(f"the daemon: {action.why}")
                else:
                    run.word_hold = f"the daemon: {action.why}"
            case Deed.ROLL_BACK:
                run.at_most = action.at_most_step
            case Deed.EXCLUDE if waits:
                ours = frozenset(self.notes.get(note_of(run.key), "").split(",")) - {""}
                theirs = run.excluded - ours
                run.excluded = theirs | frozenset(action.nodes)
                self.notes[note_of(run.key)] = ",".join(sorted(frozenset(action.nodes) - theirs))
            case Deed.START_NOW if waits and run.reason == "BeginTime":
                run.begin_at = self.world.now_s
            case _:
                return Outcome.CHANGED
        return Outcome.DONE

    def _bring_back(self, action: Action, run: Run) -> Outcome:
        job = self.world.job_of(run)
        look = Look(run.history(), run.past(), () if job is None else (job,), run.restarts, True)
        try:
            due = decide_requeue.decide(look, Wanted(by=BY_DAEMON, exclude=frozenset(action.nodes)))
        except FleetctlError:
            return Outcome.CHANGED
        deeds = {
            Deed.REQUEUE: decide_requeue.Deed.REQUEUE,
            Deed.REQUEUE_ENDED: decide_requeue.Deed.REQUEUE_ENDED,
            Deed.RESUBMIT: decide_requeue.Deed.SUBMIT,
        }
        if due is not deeds[action.deed]:
            return Outcome.CHANGED
        if run.is_mute and run.head is not None and action.rule == "head_silent" and not self.world.stands(run):
            self.world.harms.append(f"{run.key} trained on under a silent head, and was ended")
        if action.deed is Deed.RESUBMIT:
            self.world.resubmit(run)
        elif not (self.world.requeue if action.deed is Deed.REQUEUE else self.world.requeue_ended)(run):
            return Outcome.CHANGED
        before = frozenset() if action.deed is Deed.RESUBMIT else run.excluded
        ours = frozenset(self.notes.get(note_of(run.key), "").split(",")) - {""}
        run.excluded = before | frozenset(action.nodes)
        self.notes[note_of(run.key)] = ",".join(sorted((ours & before) | (frozenset(action.nodes) - before)))
        return Outcome.DONE


OF_RUNS = (
    "node",
    "head",
    "silent_head",
    "mute_head",
    "preempt",
    "cancel",
    "scancel",
    "hold",
    "release",
    "requeue",
    "nothing",
)
OF_NODES = ("drain", "undrain", "faulty", "repair")
OF_THE_DAEMON = ("blind", "controller", "maintenance", "kill_daemon", "pause", "resume")
FAULTS = (*OF_RUNS, *OF_NODES, *OF_THE_DAEMON)
Check = Callable[[Snapshot, Memory, Decision], None]


def play(seed: int, checks: tuple[Check, ...] = (), faults: tuple[str, ...] = FAULTS) -> tuple[World, Daemon]:
    """One history: an hour or two of faults, then peace until everything is settled."""
    rng = random.Random(seed)
    runs = [
        Run(
            f"r-{number}",
            rng.choice(["ann", "bob"]),
            rng.choice([Kind.GOOD, Kind.GOOD, Kind.GOOD, *Kind]),
            rng.randint(1, 2),
            rng.choice([600, 1800, 4000]),
            no_kill=rng.random() < 0.3,
            inside=rng.random() < 0.7,
        )
        for number in range(rng.randint(1, 4))
    ]
    for run in runs:
        run.trouble_at = rng.randint(1, run.target)
    world = World(rng, rng.randint(3, 8), runs)
    world.proved = rng.random() < 0.3
    mode = rng.choice(list(Mode))
    level = AdminLevel.ADMINISTRATOR if mode is Mode.OPERATOR and rng.random() < 0.7 else AdminLevel.OPERATOR
    daemon = Daemon(world, Policy(mode=mode, level=level, deeds=Deeds.ACT))
    daemon.checks.extend(checks)
    for _ in range(rng.randint(0, 12)):
        world_for(world, daemon, rng.uniform(10, 900))
        fault(rng.choice(faults), rng, world, daemon)
    daemon.paused_by, world.reservations = "", []
    daemon.dies = lambda moment: False
    for machine in world.nodes.values():
        machine.faulty = False
        if machine.reason == FOREIGN and not machine.drained:
            world.harms.append(f"an admin's drain of {machine.name} is gone")
        machine.drained, machine.reason = False, "Not responding" if machine.down else ""
    for run in runs:
        run.reason = "Priority" if run.reason.startswith("JobHeld") else run.reason
    for _ in range(40):
        if all(settled(daemon, run) for run in runs):
            break
        world_for(world, daemon, 3600)
        for run in runs:
            if run.state is State.RUNNING and settled(daemon, run):
                world.cancel(run, recorded=True)  # it burns its nodes: a person was told, and ends it
    return world, daemon


def world_for(world: World, daemon: Daemon, duration_s: float) -> None:
    until = world.now_s + duration_s
    while world.now_s < until:
        daemon.once()
        world.advance(min(max(daemon.look_again_s, 5.0), until - world.now_s))


def settled(daemon: Daemon, run: Run) -> bool:
    if run.state is State.RUNNING and run.poison is not None and (run.is_held or run.word_hold):
        return True  # it burns on until a person ends it: nobody cancels for them
    if run.state is State.RUNNING and run.is_mute and run.poison is not None:
        return told(daemon, run, of_silence=True)  # its head tells nobody of the losses: a person looks
    if run.state in (State.PENDING, State.RUNNING, State.COMPLETING):
        return False
    return run.cancelled or run.finished or run.is_held or bool(run.word_hold) or told(daemon, run)


def told(daemon: Daemon, run: Run, *, of_silence: bool = False) -> bool:
    """A person was told of the start that stands; `of_silence`: of its head, which is no end of anything."""
    start = f"{CLUSTER}/{run.job_id}/"
    mine = [d.action for d in daemon.done if d.action.key == run.key and d.action.start.startswith(start)]
    return any(a.deed is Deed.TELL and a.rule.startswith("silent") is of_silence for a in mine)


def fault(kind: str, rng: random.Random, world: World, daemon: Daemon) -> None:  # noqa: C901 - a list of what can happen
    run = rng.choice(list(world.runs.values()))
    machine = rng.choice(list(world.nodes.values()))
    match kind:
        case "node":
            world.kill_node(machine.name, rng.choice([30.0, 400.0, 3000.0]))
        case "head":
            world.kill_head(run)
        case "silent_head":
            world.silence_head(run)
        case "mute_head":
            run.is_mute = run.state is State.RUNNING
        case "preempt":
            world.preempt(run)
        case "cancel":
            world.cancel(run, recorded=True)
        case "scancel":
            world.cancel(run, recorded=False)
        case "drain" if not machine.reason:
            machine.drained, machine.reason = True, FOREIGN
        case "undrain" if machine.reason == FOREIGN:
            machine.drained, machine.reason = False, ""
        case "hold" if run.state is State.PENDING:
            run.reason = "JobHeldUser"
        case "release" if run.reason == "JobHeldUser":
            run.reason = "Priority"
        case "requeue":
            world.person_requeues(run)
        case "faulty":
            machine.faulty = True
        case "repair":
            machine.faulty = False
        case "blind":
            for _ in range(rng.randint(1, 20)):
                sources = ["facts", "jobs", "nodes", "findings", "maintenance", "controller", "signs"]
                daemon.once(frozenset(rng.sample(sources, rng.randint(1, 3))))
                world.advance(30)
        case "controller":
            world.controller_since = world.now
        case "maintenance":
            names = frozenset(rng.sample(list(world.nodes), 2))
            world.reservations.append(
                Reservation("m", names, world.now, world.now + timedelta(seconds=rng.uniform(60, 3600)))
            )
        case "kill_daemon":
            share = rng.choice([0.1, 0.5])
            daemon.dies = lambda moment: rng.random() < share
        case "pause":
            daemon.paused_by = "ann"
        case "resume":
            daemon.paused_by = ""


def main() -> None:
    ends: Counter[str] = Counter()
    for seed in range(int(sys.argv[1]), int(sys.argv[2])):
        world, daemon = play(seed)
        for harm in world.harms:
            print(f"seed {seed}: {harm}")
        for run in world.runs.values():
            how = end_of(daemon, run)
            ends[f"{run.kind} {how}"] += 1
            if how == "open" or (how in sys.argv[3:] and run.kind in (Kind.GOOD, Kind.FLAKY, Kind.TORN)):
                print(f"seed {seed}: {run.key} ({run.kind}) is {how}: {run.state} {run.base} {run.reason} {run.held}")
                for done in daemon.done if sys.argv[3:] else ():
                    if done.action.key == run.key:
                        seconds = (done.at - BEGAN).total_seconds()
                        print(
                            f"  {seconds:7.0f} {done.action.deed} {done.action.start} {done.outcome} {done.action.why}"
                        )
    for how, count in sorted(ends.items()):
        print(f"{count:6} {how}")


def end_of(daemon: Daemon, run: Run) -> str:
    if not settled(daemon, run):
        return "open"
    if run.cancelled:
        return "cancelled"
    if run.finished:
        return "finished"
    return "held" if run.is_held or run.word_hold else "told"


if __name__ == "__main__":
    main()
