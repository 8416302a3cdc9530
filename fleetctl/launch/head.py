"""The loop of the process that leads a job: attempt after attempt, until the run is done or better left to Slurm."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fleetctl.errors import FleetctlError, JobSideError, JobUnknown
from fleetctl.launch.attempt import Running, Start, note_lost
from fleetctl.launch.classify import Ended
from fleetctl.launch.decide import Action, Hold, Leave, Nodes, Requeue, Restart, Wait, after_attempt, brake, go_on
from fleetctl.launch.judge import NoticeKind, Verdict
from fleetctl.launch.lead import Lead
from fleetctl.launch.leave import give_back, hold, requeue
from fleetctl.launch.resume import choose
from fleetctl.rundir.model import AttemptNumber, Ending, EventKind, attempt_name
from fleetctl.slurm.model import BaseState, JobState, StateFlag

if TYPE_CHECKING:
    from fleetctl.launch.watch import Watch

_ASK_AGAIN_S = 5.0
_GO_ON = frozenset({StateFlag.SIGNALING, StateFlag.RESIZING, StateFlag.STOPPED})  # each hides the base state
_SETTLE_S = 1.0  # scancel ends the steps and us at about the same time: who was first must not matter
_TICK_S = 0.5
_ASK_DOWN_S = 10.0  # how often Slurm is asked for the state of all nodes while we wait for one to be DOWN
_DOUBT_S = 10.0
_TOLD_WITHIN_S = 120.0  # after a requeue Slurm sends TERM at once, KILL after KillWait
_GIVE_UP_S = 3600.0  # a job without batch script whose nodes Slurm never finds down: cancelled after so long
_DOWN = frozenset({"DOWN", "FUTURE", "ERROR"})


class Head:
    """Leads one job. `nodes` are all of the job's, in the order in which they are used; empty where Slurm places the
    steps."""

    def __init__(
        self,
        lead: Lead,
        watch: Watch,
        nodes: tuple[str, ...],
        lost: frozenset[str],
        *,
        start_agents: Callable[[], None] | None = None,
    ) -> None:
        self._lead = lead
        self._watch = watch
        self._nodes = nodes
        self._lost = lost  # given up before this head began: the batch host, for who took over from it
        self._is_batch_script = not lost
        self._start_agents = start_agents  # once, after the first step: nobody waits for them
        self._clock = lead.world.clock
        self._down: frozenset[str] = frozenset()
        self._ask_down_at_s = 0.0

    def begin(self, number: AttemptNumber, why: str) -> int:
        """Lead from the claimed attempt `number` on; the exit status of the batch script.

        :raises FleetctlError: the run directory cannot be written.
        """
        return self._lead_on(number, self._start(number, self._nodes[: self._lead.order.nodes], why))

    def take_over(self, number: AttemptNumber, why: str) -> int:
        """The same for a head that comes after a dead one: first it must see which nodes live.

        :raises FleetctlError: the run directory cannot be written.
        """
        action = go_on(why, self._see(), self._lead.policy)
        if isinstance(action, Restart):
            return self._lead_on(number, self._start(number, action.nodes, why))
        return self._lead_on(number, action)

    def _lead_on(self, number: AttemptNumber, action: Start | Action) -> int:
        status = 0
        while isinstance(action, Start | Restart | Wait):
            if isinstance(action, Wait):
                action = self._wait(action.why)
            elif isinstance(action, Restart):
                following = (number[0], number[1] + 1)
                if not self._lead.attempts.claim(following):
                    return self._stand_by(status)
                number, action = following, self._start(following, action.nodes, action.why)
            else:
                ended = self._run(action)
                if ended.ending is Ending.FENCED:
                    return self._stand_by(ended.status)
                status, action = ended.status, self._next(ended)
        if isinstance(action, Requeue):
            return self._requeue(number, action.why, status)
        return self._end(number, status, held=action.why if isinstance(action, Hold) else None)

    def _run(self, start: Start) -> Ended:
        running = Running(self._lead, start, self._watch)
        if self._start_agents is not None:
            self._start_agents()
            self._start_agents = None
        return running.wait()

    def _start(self, number: AttemptNumber, nodes: tuple[str, ...], why: str) -> Start | Hold:
        lead = self._lead
        resume = choose(lead.order.checkpoint, lead.attempts, number, lead.run.history(), lead.job, self._clock)
        if resume.hold is not None:
            return Hold(resume.hold)
        in_order = tuple(node for node in self._nodes if node in nodes)  # Slurm's: rank 0 is on the first of them
        return Start(number, in_order, why, resume, lead.world.code())

    def _next(self, ended: Ended) -> Action:
        """What follows, after a last look at whether anybody wants the run to end."""
        lead = self._lead
        if ended.ending is Ending.FINISHED or lead.order.max_failures is None or self._is_told(_SETTLE_S):
            return Leave()
        if not self._is_still_ours():
            return Leave()
        history = lead.run.history()
        if history.cancelled_at is not None:
            return Leave()
        mine = [attempt for attempt in history.attempts if attempt.task == lead.job.task]
        mine = mine[history.asked.get(lead.job.task, 0) :]  # a person who asks again has mended something
        why_not = brake(mine, lead.order.max_failures) if ended.failure and lead.order.max_failures else None
        return after_attempt(ended.ending, self._see(), why_not, lead.policy)

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
                note_lost(self._lead, self._lead.attempts.newest(), notice)

    def _see(self) -> Nodes:
        """The nodes once no doubt is under way: a suspicion is settled within seconds. Those whose agent has spoken
        come first: one that never did may be anything."""
        until_s = self._clock.monotonic_s() + _DOUBT_S
        while self._clock.monotonic_s() < until_s and Verdict.SUSPECT in self._verdicts().values():
            self._poll()
        by: dict[Verdict, list[str]] = {}
        for node, verdict in self._verdicts().items():
            by.setdefault(verdict, []).append(node)
        alive = [*by.get(Verdict.LIVE, ()), *by.get(Verdict.AWAITED, ())]
        dead = by.get(Verdict.DEAD, [])
        paused = [node for node in self._nodes if node not in alive and node not in dead]
        return Nodes(tuple(alive), tuple(paused), tuple(dead), self._down)

    def _verdicts(self) -> dict[str, Verdict]:
        known = {self._lead.job.host: Verdict.LIVE} | dict.fromkeys(self._lost, Verdict.DEAD)
        return {node: known.get(node) or self._watch.verdict(node) for node in self._nodes}

    def _wait(self, why: str) -> Action:
        """Until enough nodes live, or Slurm has found the dead ones down; Slurm may requeue the job meanwhile."""
        self._lead.world.say(f"fleetctl: waiting: {why}")
        give_up_at_s = self._clock.monotonic_s() + _GIVE_UP_S
        while not self._lead.world.told_to_end():
            self._poll()
            self._ask_down()
            action = go_on(why, self._see(), self._lead.policy)
            if not isinstance(action, Wait):
                return action
            if not self._is_batch_script and self._clock.monotonic_s() > give_up_at_s:
                return Hold(f"{why}, for {_GIVE_UP_S / 60:.0f} minutes")
        return Leave()

    def _ask_down(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s >= self._ask_down_at_s:
            self._ask_down_at_s = now_s + _ASK_DOWN_S
            nodes = self._lead.ask(self._lead.world.slurm.nodes) or ()
            self._down = frozenset(node.name for node in nodes if node.base_state in _DOWN)

    def _requeue(self, number: AttemptNumber, why: str, status: int) -> int:
        """Slurm ends this process soon after it has taken the job back."""
        lead = self._lead
        if requeue(lead, number, why):
            self._watch.dismiss()
            self._is_told(_TOLD_WITHIN_S)
            return status
        if lead.world.told_to_end() or lead.run.history().cancelled_at is not None:
            return status
        return self._end(number, status, held=f"{why}, and Slurm did not requeue the job")

    def _end(self, number: AttemptNumber, status: int, held: str | None) -> int:
        lead = self._lead
        if held is not None:
            hold(lead, held)
            status = status or JobSideError.exit_code
        if not self._is_batch_script:
            give_back(lead, number, held or f"attempt {attempt_name(number)} has ended and the batch script is gone")
        self._watch.dismiss()
        return status

    def _stand_by(self, status: int) -> int:
        """Somebody else leads the run. The end of this script would end the job, and that of others with it."""
        lead = self._lead
        lead.world.say("fleetctl: a newer attempt leads this run; this process stands by until Slurm ends it")
        lead.note(EventKind.FENCED, lead.attempts.newest(), host=lead.job.host)
        self._watch.close()
        while self._is_batch_script and not lead.world.told_to_end():
            self._clock.sleep(_TICK_S)
        return status


def _goes_on(state: JobState) -> bool:
    if state.base is None:
        return bool(state.flags) and state.flags <= _GO_ON
    return state.base in (BaseState.RUNNING, BaseState.SUSPENDED) and StateFlag.COMPLETING not in state.flags
