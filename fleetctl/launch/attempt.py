"""One attempt: start the steps, watch over them and the nodes, and say how it ended."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from threading import Thread

from msgspec import Struct
from msgspec.structs import replace

from fleetctl.checkpoint.model import one_line
from fleetctl.errors import FleetctlError, RunDirError
from fleetctl.launch.classify import Ended, classify
from fleetctl.launch.environment import checkpoint_environment, first_node, head_address, rendezvous, run_environment
from fleetctl.launch.interval import said
from fleetctl.launch.judge import Notice, NoticeKind
from fleetctl.launch.lead import Lead
from fleetctl.launch.limits import LEAVE_S
from fleetctl.launch.liveness import Learned
from fleetctl.launch.model import step_nodes
from fleetctl.launch.pulse import Pulses
from fleetctl.launch.resume import Resume, collect, newest_step
from fleetctl.launch.retain import Retainer
from fleetctl.launch.saving import Saver, read_horizon
from fleetctl.launch.steps import Steps, start_steps
from fleetctl.launch.vigil import Hang, Vigil
from fleetctl.launch.watching import NodeWatch
from fleetctl.launch.witness import Witness
from fleetctl.reliability.estimate import Plan
from fleetctl.rundir.files import read_end
from fleetctl.rundir.model import AttemptNumber, Ending, EventKind, Progress, attempt_name
from fleetctl.slurm.hosts import fold
from fleetctl.spec.model import CheckpointFormat

_STEP_PREFIX = "fleetctl-"
_LOG_BYTES = 1 << 18  # of the end of the output: srun's words about the tasks that ended
_TICK_S = 0.2
_FENCE_S = 5.0  # how often a head looks whether somebody took over: at most once, when its host was out of reach
_MOST_PASSED = 5  # of those passed over that the log names
_NO_GRACE_S = 1.0  # of an srun whose tasks were killed: only for its last words


class Start(Struct, frozen=True):
    """How an attempt starts. `nodes` empty: where Slurm puts it. `code` is the git state of the working directory, and
    `pace` how often it saves where fleetctl computes that."""

    number: AttemptNumber
    nodes: tuple[str, ...]
    why: str
    resume: Resume
    code: dict[str, object] | None
    pace: Plan | None = None


class Running:
    """An attempt whose steps run."""

    def __init__(
        self, lead: Lead, start: Start, watch: NodeWatch, pulses: Pulses, learned: Learned | None = None
    ) -> None:
        """`learned` is what the attempt before this one leaves."""
        self._lead = lead
        self._start = start
        self._watch = watch
        self._pulses = pulses
        self._hang: Hang | None = None
        self.learned = learned
        self._clock = lead.world.clock
        self._stopped: Ending | None = None
        self._steps = Steps({}, self._clock)
        self._notices = lead.world.notices()
        self._look_again_s = self._clock.monotonic_s() + _FENCE_S
        self._saver = Saver(lead, start.number)
        self._retainer = Retainer(lead, start.number)
        self._witness = Witness(lead, start.number, resumed=start.resume.path is not None)

    @property
    def suspect(self) -> str:
        """The node whose rank the others waited for, if this attempt hung; else ""."""
        return self._hang.node if self._hang is not None else ""

    def begin(self) -> None:
        """Write the start down, then start the steps.

        :raises FleetctlError: it could not be written, or a node's address is not known: nothing was started.
        """
        lead, start = self._lead, self._start
        name, nodes = attempt_name(start.number), ",".join(start.nodes) or step_nodes(lead.world.environ, 0)
        environments = self._environments(name)  # may fail, and then there was no attempt
        lead.log.append(
            self._clock.now(),
            EventKind.ATTEMPT_STARTED,
            submission=lead.order.submission,
            attempt=name,
            task=lead.job.task,
            job_id=lead.job.job_id,
            host=lead.job.host,
            nodes=nodes,
            restart_count=lead.job.restart_count,
            why=start.why,
            resume_step=start.resume.training_step,
            passed_over=list(start.resume.passed_over),
            code=start.code,
        )
        where = f"job {lead.job.job_id} on {nodes}"
        lead.world.say(f"fleetctl: run {lead.run.run_id}, attempt {name}, {where}: {start.why}")
        if lead.order.checkpoint is not None:
            for line in _whence(start.resume):
                lead.world.say(f"fleetctl: {line}")
        if start.pace is not None:
            lead.world.say(said(start.pace))
        output = lead.run.attempt_dir(name, lead.job.task) / "output.log"
        steps = [replace(step, argv=(*step.argv, *start.resume.arguments)) for step in lead.order.steps]
        self._steps = start_steps(steps, environments, self._placement(), output, self._clock, lead.world.say)

    def _environments(self, name: str) -> list[dict[str, str]]:
        lead, start = self._lead, self._start
        own = checkpoint_environment(lead.order.checkpoint, start.resume, lead.job.task, start.pace)
        found = []
        for index, base in enumerate(lead.environments):
            head = start.nodes[0] if start.nodes else first_node(step_nodes(lead.world.environ, index))
            address = head_address(head, lead.world.slurm)
            found.append({**run_environment(base, lead.run, name, lead.job), **own, **rendezvous(base, address)})
        return found

    def _placement(self) -> list[str]:
        """Where srun starts the step. The name of the step is how it is found again. A step of an earlier attempt may
        still hold its share of a dead node: without --overlap a new one would wait for it, and on 22.05.8 memory is
        not shared then either, unless all of it is asked for."""
        words = [f"--job-name={step_name(self._start.number)}"]
        if self._start.nodes:
            words.append(f"--nodelist={fold(self._start.nodes)}")
        return [*words, "--overlap", "--mem=0"] if self._start.number[1] else words

    def wait(self) -> Ended:
        """Until all steps have ended. Once they run, nothing that fails here may end them but what is meant to."""
        lead, number = self._lead, self._start.number
        self._saver.learn(read_horizon(lead))
        stale = (lead.order.checkpoint, number, lead.run.run_id, lead.job.task)
        Thread(target=collect, args=stale, daemon=True).start()  # terabytes, maybe: nobody waits for it
        self._pulses.begin(number, self._start.resume.training_step)
        vigil = Vigil(lead, number, self._watch, self._pulses, self._start.nodes, self.learned)
        while (codes := self._steps.poll()) is None:
            self._heed_nodes()
            self._heed_time()
            self._heed_fence()
            self._heed_ranks(vigil)
            self._retainer.tend()
            self._witness.tend()
        vigil.close()
        self.learned = vigil.learned()
        self._retainer.stop()  # before the next attempt chooses
        progress = lead.run.progress(attempt_name(number), lead.job.task)
        saved = self._stopped is not Ending.SAVED or self._saver.is_saved()
        log = read_end(lead.run.attempt_dir(attempt_name(number), lead.job.task) / "output.log", _LOG_BYTES)
        told, hung_in = lead.world.told_to_end(), self._hang.phase.value if self._hang is not None else ""
        again = lead.job.restart_count > 0
        ended = classify(
            codes, self._stopped, progress, told=told, saved=saved, log=log, hung_in=hung_in, came_back=again
        )
        lead.note(
            EventKind.ATTEMPT_ENDED,
            number,
            job_id=lead.job.job_id,
            exit_code=ended.status,
            terminated=lead.world.told_to_end(),
            steps=codes,
            ending=ended.ending.value,
            signal=ended.signal,
            failure=ended.failure,
            progress_step=progress_step(lead, number, self._start.resume, progress),
        )
        how = f"{ended.ending.value.replace('_', ' ')}, status {ended.status}"
        lead.world.say(f"fleetctl: attempt {attempt_name(number)}: {how}")
        return ended

    def _heed_nodes(self) -> None:
        for notice in self._watch.poll(_TICK_S):
            if notice.kind is NoticeKind.TERM:
                self._saver.learn(read_horizon(self._lead))
            if notice.kind is NoticeKind.DEAD:
                note_lost(self._lead, self._start.number, notice)
                self._pulses.lose(notice.node)
                if notice.node in self._start.nodes:
                    self._stop(Ending.NODE_LOST)

    def _heed_ranks(self, vigil: Vigil) -> None:
        """Where nothing may be started again, a hang is told and not ended: somebody may want to look at it."""
        found = vigil.tend() if self._stopped is None else None
        if found is None or self._hang is not None or self._lead.order.max_failures is None:
            return
        self._hang = found
        self._lead.note(
            EventKind.HUNG,
            self._start.number,
            node=found.node,
            rank=found.rank,
            phase=found.phase.value,
            silent_s=found.silent_s,
            limit_s=found.limit_s,
            evidence=list(found.evidence),
        )
        whom = f", the others wait for rank {found.rank} on {found.node or 'one of several nodes'}"
        self._lead.world.say(
            f"fleetctl: attempt {attempt_name(self._start.number)} hangs in {found.phase.value}: silent for"
            f" {found.silent_s:.0f} s{whom if found.rank is not None else ''}"
        )
        self._stop(Ending.HUNG)

    def _heed_time(self) -> None:
        """Slurm's notice says only that the end is near: when, is for Slurm to say again."""
        heard = self._lead.world.notices()
        if heard != self._notices:
            self._notices = heard
            self._saver.learn(read_horizon(self._lead))
        if self._saver.is_time_to_leave():
            self._stop(Ending.SAVED)

    def _heed_fence(self) -> None:
        if self._clock.monotonic_s() < self._look_again_s:
            return
        self._look_again_s = self._clock.monotonic_s() + _FENCE_S
        with suppress(RunDirError):  # not known now: a file server that fails over is no newer attempt
            if self._lead.attempts.newest() > self._start.number:
                self._stop(Ending.FENCED)

    def _stop(self, ending: Ending) -> None:
        """End the steps. Where a part of them is out of reach, the rest is killed by Slurm: it may hang in a collective
        and hold its GPUs, and srun waits for what will never answer."""
        if self._stopped is not None:
            return
        self._stopped = ending
        if ending is Ending.SAVED:
            self._steps.end(LEAVE_S)
        else:
            self._kill_tasks()
            self._steps.end(_NO_GRACE_S)

    def _kill_tasks(self) -> None:
        """Kill what runs in our own steps, wherever Slurm reaches it."""
        lead, mine = self._lead, step_name(self._start.number)
        for step in lead.ask(lambda: lead.world.slurm.steps(lead.raw_job_id)) or ():
            if step.name == mine:
                lead.ask(partial(lead.world.slurm.kill_step, step.id))


def step_name(number: AttemptNumber) -> str:
    """What the steps of an attempt are called in Slurm."""
    return f"{_STEP_PREFIX}{attempt_name(number)}"


def note_lost(lead: Lead, number: AttemptNumber, notice: Notice) -> None:
    """Write down that a node died, with the evidence."""
    lead.note(EventKind.NODE_LOST, number, node=notice.node, evidence=notice.evidence)
    lead.world.say(f"fleetctl: node {notice.node} is lost: {notice.evidence}")


def progress_step(lead: Lead, number: AttemptNumber, resume: Resume, progress: Progress | None) -> int | None:
    """The training step of the newest checkpoint; where that is not known, the last step that the training told."""
    order = lead.order.checkpoint
    steps = [save.training_step for save in lead.attempts.saves(number) if save.committed]
    if order is not None and (steps or order.format == CheckpointFormat.OWN):
        return max([*steps, *([resume.training_step] if resume.training_step is not None else [])], default=None)
    if order is not None and not lead.world.told_to_end():  # else there are seconds left, and nobody decides on it
        with suppress(FleetctlError):
            return newest_step(order, lead.attempts, number, lead.run.history(), lead.job.task)
    return progress.training_step if progress is not None else None


def _whence(resume: Resume) -> list[str]:
    """What an attempt starts from, for its log."""
    step = resume.training_step
    lines = ["it starts from scratch" if step is None else f"it resumes from training step {step}"]
    lines += [f"not from {one_line(passed)}" for passed in resume.passed_over[:_MOST_PASSED]]
    if len(resume.passed_over) > _MOST_PASSED:
        lines.append(f"{len(resume.passed_over) - _MOST_PASSED} more were passed over: resume.json")
    if resume.arguments:
        lines.append(f"the command also gets: {one_line(' '.join(resume.arguments))}")
    if resume.pointer is not None:
        name, text, kept = resume.pointer.name, resume.pointer.text, resume.pointer.kept
        what = "was moved away" if text is None else f"says {one_line(text)} now"
        lines.append(f"the pointer {name} {what}" + (f"; what it said is in {kept}" if kept else ""))
    return lines
