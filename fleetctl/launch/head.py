"""The loop of the process that leads a job: attempt after attempt, until the run is done or better left to Slurm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from msgspec.structs import replace

from fleetctl.errors import CannotTell, FleetctlError, JobSideError, JobUnknown, RunDirError
from fleetctl.launch.attempt import Running, Start, note_lost
from fleetctl.launch.classify import Ended
from fleetctl.launch.clear import clear_steps
from fleetctl.launch.decide import (
    Action,
    Hold,
    Leave,
    Nodes,
    Policy,
    Requeue,
    Restart,
    StandBy,
    Wait,
    after_attempt,
    brake,
    go_on,
    requeue_when_safe,
    without_gpus,
)
from fleetctl.launch.interval import pace
from fleetctl.launch.judge import NoticeKind, Verdict
from fleetctl.launch.lead import Lead
from fleetctl.launch.leave import give_back, hold, requeue
from fleetctl.launch.liveness import Learned
from fleetctl.launch.pulse import Pulses, Seen
from fleetctl.launch.resume import Resume, choose
from fleetctl.launch.watching import NodeWatch
from fleetctl.rundir.history import History
from fleetctl.rundir.model import WITHOUT_GPUS, AttemptNumber, Ending, EventKind, attempt_name
from fleetctl.rundir.pulse import WAITS
from fleetctl.slurm.hosts import expand
from fleetctl.slurm.model import BaseState, JobState, StateFlag

Value = TypeVar("Value")

_ASK_AGAIN_S = 5.0
_GO_ON = frozenset({StateFlag.SIGNALING, StateFlag.RESIZING, StateFlag.STOPPED})  # each hides the base state
_SETTLE_S = 1.0  # scancel ends the steps and us at about the same time: who was first must not matter
_TICK_S = 0.5
_ASK_DOWN_S = 10.0  # how often Slurm is asked for the state of all nodes while we wait for one to be DOWN
_DOUBT_S = 10.0
_TOLD_WITHIN_S = 120.0  # after a requeue Slurm sends TERM at once, KILL after KillWait
_GIVE_UP_S = 3600.0  # of waiting for nodes that neither come back nor are found DOWN: GPUs stand idle meanwhile
_STORAGE_S = 600.0  # that the storage of the checkpoints may be away: a file server fails over within minutes
_DOWN = frozenset({"DOWN", "FUTURE", "ERROR"})
_SAFE_REQUEUE = (24, 11)  # tried on 24.11.5 and 26.05.5: the job waits for DOWN, and comes back with its GPUs


class Head:
    """Leads one job. `nodes` are all of the job's, in the order in which they are used; empty where Slurm places the
    steps. `lost` were given up before this head began: the batch host, for who took over from it."""

    def __init__(
        self,
        lead: Lead,
        watch: NodeWatch,
        nodes: tuple[str, ...],
        lost: frozenset[str] = frozenset(),
        *,
        is_batch_script: bool = True,
    ) -> None:
        self._lead = lead
        self._watch = watch
        self._nodes = nodes
        self._lost = lost
        self._is_batch_script = is_batch_script
        self._pulses = Pulses(lead)
        self._suspects = frozenset({""})  # nodes that an attempt was found hung for: taken last
        self._learned: Learned | None = None
        self._clock = lead.world.clock
        self._down: frozenset[str] = frozenset()
        self._number: AttemptNumber = (0, 0)  # the attempt that we lead
        self._ask_down_at_s = 0.0

    def begin(self, number: AttemptNumber, why: str) -> int:
        """Lead from the claimed attempt `number` on; the exit status of the batch script.

        :raises FleetctlError: the run directory cannot be written.
        """
        with self._told(number):
            return self._lead_on(number, self._start(number, self._nodes[: self._lead.order.nodes], why))

    def take_over(self, number: AttemptNumber, why: str) -> int:
        """The same for a head that comes after a dead one: first it must see which nodes live.

        :raises FleetctlError: the run directory cannot be written.
        """
        with self._told(number):
            action = go_on(why, self._see(), self._policy())
            if not isinstance(action, Restart):
                return self._lead_on(number, action)
            cleared = clear_steps(self._lead, self._watch, self._lost)
            return self._lead_on(number, self._start(number, action.nodes, why) if cleared else Leave())

    def give_up(self, number: AttemptNumber, why: str) -> int:
        """For a head that cannot lead: Slurm starts the job again as soon as that does no harm.

        :raises FleetctlError: the run directory cannot be written.
        """
        with self._told(number):
            return self._lead_on(number, requeue_when_safe(why, self._see(), self._policy()))

    @contextmanager
    def _told(self, number: AttemptNumber) -> Iterator[None]:
        """Leads attempt `number`, and says all the while how the run is."""
        self._number = number
        self._pulses.begin(number)
        try:
            yield
        finally:
            self._pulses.close()

    def _lead_on(self, number: AttemptNumber, action: Start | Action) -> int:
        status, self._number = 0, number
        while isinstance(action, Start | Restart | Wait):
            if isinstance(action, Wait):
                action = self._wait(number, action)
            elif isinstance(action, Restart):
                number, action = self._restart(number, action)
                self._number = number
                self._pulses.begin(number)
            else:
                running = Running(self._lead, action, self._watch, self._pulses, self._learned)
                self._patiently(running.begin) if number[1] else running.begin()  # a first start may just fail
                ended = running.wait()
                self._suspects |= {running.suspect}
                self._learned = running.learned
                status, action = ended.status, self._next(number, ended)
        if isinstance(action, StandBy) or self._is_fenced(number):
            return self._stand_by(status)
        if isinstance(action, Requeue):
            return self._requeue(number, action.why, status)
        return self._end(number, status, held=action.why if isinstance(action, Hold) else None)

    def _restart(self, number: AttemptNumber, action: Restart) -> tuple[AttemptNumber, Start | Action]:
        """Nothing of the attempt before may live when the next one starts, whatever it was and whoever started it."""
        lead, following = self._lead, (number[0], number[1] + 1)
        if not clear_steps(lead, self._watch, self._lost):
            return number, Leave()
        now = self._clock.now()  # the same for each try: by it a claim is known that was made and seemed to fail
        if not self._patiently(lambda: lead.attempts.claim(following, now=now, host=lead.job.host)):
            return number, StandBy()
        self._watch.mend()
        return following, self._patiently(lambda: self._start(following, action.nodes, action.why))

    def _start(self, number: AttemptNumber, nodes: tuple[str, ...], why: str) -> Start | Hold:
        lead = self._lead
        history = lead.run.history()
        resume = self._choose(number, history)
        if resume.hold is not None:
            return Hold(resume.hold)
        in_order = tuple(node for node in self._nodes if node in nodes)  # Slurm's: rank 0 is on the first of them
        return Start(number, in_order, why, resume, lead.world.code(), pace(lead, number, history))

    def _choose(self, number: AttemptNumber, history: History) -> Resume:
        """:raises CannotTell: the storage does not answer, and Slurm has told us to end."""
        lead, until_s = self._lead, self._clock.monotonic_s() + _STORAGE_S
        while True:
            try:
                return choose(lead.order.checkpoint, lead.attempts, number, history, lead.job, self._clock)
            except CannotTell as error:
                if self._clock.monotonic_s() >= until_s:
                    return Resume(hold=error.message)
                lead.world.say(f"fleetctl: {error.message}; trying again")
                if self._is_told(_ASK_AGAIN_S):
                    raise

    def _next(self, number: AttemptNumber, ended: Ended) -> Action:
        """What follows, after a last look at whether anybody wants the run to end, or leads it by now."""
        lead = self._lead
        if ended.ending is Ending.FENCED or self._is_fenced(number):
            return StandBy()
        if ended.ending is Ending.FINISHED or lead.order.max_failures is None or self._is_told(_SETTLE_S):
            return Leave()
        if not self._is_still_ours():
            return Leave()
        history = self._patiently(lead.run.history)
        if history.cancelled_at is not None:
            return Leave()
        mine = [attempt for attempt in history.attempts if attempt.task == lead.job.task]
        mine = mine[history.asked.get(lead.job.task, 0) :]  # a person who asks again has mended something
        if ended.failure == WITHOUT_GPUS:
            return without_gpus(mine, self._see(), self._policy())
        why_not = brake(mine, lead.order.max_failures) if ended.failure else None
        return after_attempt(ended.ending, self._see(), why_not, self._policy())

    def _policy(self) -> Policy:
        """Which Slurm this is matters only where a node is out of reach."""
        policy = self._lead.policy
        if set(self._verdicts().values()) <= {Verdict.LIVE}:
            return policy
        version = self._lead.ask(self._lead.world.slurm.version) or ""
        numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
        return replace(policy, requeue_is_safe=tuple(numbers) >= _SAFE_REQUEUE)

    def _patiently(self, deed: Callable[[], Value]) -> Value:
        """A full disk, a file server that fails over or a controller that is away must not end a run: try again until
        it works or Slurm ends us.

        :raises RunDirError, CannotTell: it still fails and Slurm has told us to end.
        """
        while True:
            try:
                return deed()
            except (RunDirError, CannotTell) as error:
                if self._is_told(_ASK_AGAIN_S):
                    raise
                self._lead.world.say(f"fleetctl: {error.message}; trying again")

    def _is_fenced(self, number: AttemptNumber) -> bool:
        return self._patiently(self._lead.attempts.newest) > number

    def _is_told(self, within_s: float) -> bool:
        until_s = self._clock.monotonic_s() + within_s
        while not self._lead.world.told_to_end() and self._clock.monotonic_s() < until_s:
            self._poll()
        return self._lead.world.told_to_end()

    def _is_still_ours(self) -> bool:
        """Whether Slurm still runs this start of this job. Asked until it answers: a head whose host was cut off does
        not know that the job was requeued meanwhile, and must neither restart nor hold what others run by now."""
        while not self._lead.world.told_to_end():
            try:
                found = self._lead.world.slurm.allocation(self._lead.raw_job_id)
            except JobUnknown:
                return False
            except FleetctlError as error:
                self._lead.world.say(f"fleetctl: {error.message}; asking again before anything is restarted")
                self._is_told(_ASK_AGAIN_S)
                continue
            restarts = self._lead.job.restart_count if found.restarts is None else found.restarts
            return _goes_on(found.state) and restarts == self._lead.job.restart_count
        return False

    def _poll(self) -> None:
        for notice in self._watch.poll(_TICK_S):
            if notice.kind is NoticeKind.DEAD:
                note_lost(self._lead, self._number, notice)
                self._pulses.lose(notice.node)

    def _see(self) -> Nodes:
        """The nodes once no doubt is under way: a suspicion is settled within seconds. Those whose agent has spoken
        come first: one that never did may be anything."""
        until_s = self._clock.monotonic_s() + _DOUBT_S
        while self._clock.monotonic_s() < until_s and Verdict.SUSPECT in self._verdicts().values():
            self._poll()
        verdicts = self._verdicts()
        live = [node for node, verdict in verdicts.items() if verdict is Verdict.LIVE]
        usable = [n for n, v in verdicts.items() if v not in (Verdict.LIVE, Verdict.DEAD) and self._watch.is_usable(n)]
        dead = [node for node, verdict in verdicts.items() if verdict is Verdict.DEAD]
        paused = [node for node in self._nodes if node not in (*live, *usable, *dead)]
        alive = sorted((*live, *usable), key=lambda node: node in self._suspects)
        return Nodes(tuple(alive), tuple(paused), tuple(dead), self._down)

    def _verdicts(self) -> dict[str, Verdict]:
        known = {self._lead.job.host: Verdict.LIVE} | dict.fromkeys(self._lost, Verdict.DEAD)
        return {node: known.get(node) or self._watch.verdict(node) for node in self._nodes}

    def _wait(self, number: AttemptNumber, waiting: Wait) -> Action:
        """Until enough nodes live, or Slurm has found the dead ones down; Slurm may requeue the job meanwhile."""
        self._lead.world.say(f"fleetctl: waiting: {waiting.why}")
        self._pulses.tell(Seen(phase=WAITS))
        decide = requeue_when_safe if waiting.then_requeue else go_on
        policy, give_up_at_s = self._policy(), self._clock.monotonic_s() + _GIVE_UP_S
        while not self._lead.world.told_to_end():
            self._poll()
            self._ask_down()
            action = decide(waiting.about, self._see(), policy)
            if not isinstance(action, Wait):
                return StandBy() if self._is_fenced(number) else action
            if self._clock.monotonic_s() > give_up_at_s:
                return Hold(f"{waiting.why}, for {_GIVE_UP_S / 60:.0f} minutes")
        return Leave()

    def _ask_down(self) -> None:
        """A dead node that came back before anybody saw it DOWN is gone from the job all the same."""
        now_s, slurm = self._clock.monotonic_s(), self._lead.world.slurm
        if now_s < self._ask_down_at_s:
            return
        self._ask_down_at_s = now_s + _ASK_DOWN_S
        nodes = self._lead.ask(slurm.nodes)
        job = self._lead.ask(lambda: slurm.allocation(self._lead.raw_job_id))
        down = {node.name for node in nodes or () if node.base_state in _DOWN}
        if job is not None and job.node_list:
            down |= set(self._nodes) - set(expand(job.node_list))
        self._down = frozenset(down)

    def _requeue(self, number: AttemptNumber, why: str, status: int) -> int:
        """Slurm ends this process soon after it has taken the job back."""
        lead = self._lead
        if self._patiently(lambda: requeue(lead, number, why)):
            self._watch.dismiss()
            self._is_told(_TOLD_WITHIN_S)
            return status
        if lead.world.told_to_end() or self._patiently(lead.run.history).cancelled_at is not None:
            return status
        return self._end(number, status, held=f"{why}, and Slurm did not requeue the job")

    def _end(self, number: AttemptNumber, status: int, held: str | None) -> int:
        lead = self._lead
        if held is not None:
            self._patiently(lambda: hold(lead, held))
            status = status or JobSideError.exit_code
        if not self._is_batch_script:
            why = held or f"attempt {attempt_name(number)} has ended and the batch script is gone"
            self._patiently(lambda: give_back(lead, number, why))
        self._watch.dismiss()
        return status

    def _stand_by(self, status: int) -> int:
        """Somebody else leads the run. The end of this script would end the job, and that of others with it."""
        lead = self._lead
        lead.world.say("fleetctl: a newer attempt leads this run; this process stands by until Slurm ends it")
        lead.note(EventKind.FENCED, self._patiently(lead.attempts.newest), host=lead.job.host)
        self._watch.close()
        self._pulses.hush()
        while self._is_batch_script and not lead.world.told_to_end():
            self._clock.sleep(_TICK_S)
        return status


def _goes_on(state: JobState) -> bool:
    if state.base is None:
        return bool(state.flags) and state.flags <= _GO_ON
    return state.base in (BaseState.RUNNING, BaseState.SUSPENDED) and StateFlag.COMPLETING not in state.flags
