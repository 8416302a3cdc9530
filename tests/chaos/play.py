"""One scenario, played on a site from submit to the run's end, and judged."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from fleetctl.errors import FleetctlError
from tests.chaos import promises
from tests.chaos.beside import Daemons
from tests.chaos.faults import DEEDS
from tests.chaos.scenario import Fault, Moment, Planned, Scenario
from tests.chaos.site import Site
from tests.chaos.stage import Mend, Missed, Stage
from tests.faults.training import Training
from tests.support import EXAMPLES, ROOT, Cli, write_spec

STEPS, STEP_TIME_MS, _NAN_STEP_TIME_MS = 220, 50, 200
_HANG_FLOOR_S = "6"
_PROGRAM = ROOT / "tests" / "chaos" / "train_chaos.py"
_MOMENT_S, _END_S, _QUIET_S, _GONE_S = 60.0, 200.0, 10.0, 60.0
_FINISHED = frozenset({"completed", "held", "cancelled", "failed", "timeout", "node_fail", "lost", "preempted"})
_ORPHAN_S = 45.0
_LAUNCH_FAILED = "launch failed requeued held"
_DAEMON_S = 60.0  # that a daemon has to bring back what has failed
_END_WITH_DAEMON_S = 400.0  # it does nothing for two minutes after slurmctld began
_SPEC = """\
name: chaos
resources: {{nodes: {nodes}, spare_nodes: {spares}, gpus_per_node: 8, tasks_per_node: {tasks_per_node},
  cpus_per_task: 1, time: 10m}}
checkpoint: {{dir: {checkpoints}, format: own, interval: 1s}}
recovery: {{max_failures: 3}}
workdir: {workdir}
command: |
  echo "$RANK $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES" >> {folder}/placed.$FLEETCTL_ATTEMPT
  exec python3 {program} {folder} --steps {steps} --step-time-ms {step_time_ms} {more}
"""


class Result(Struct, frozen=True):
    """What came of one scenario. `applied`: its faults that were done; `broken`: promises, in words."""

    seed: int
    daemon: bool
    applied: tuple[Fault, ...]
    missed: tuple[Fault, ...]
    state: str
    reason: str
    attempts: tuple[str, ...]
    seconds: float
    broken: tuple[str, ...]
    story: tuple[str, ...]


class Stuck(Exception):
    """What must happen some time did not."""


class Player:
    """Plays one scenario."""

    def __init__(self, stage: Stage, scenario: Scenario, daemons: Daemons) -> None:
        self.stage, self.scenario, self.daemons = stage, scenario, daemons
        self.began = time.monotonic()
        self.story: list[str] = []
        self.missed: list[Fault] = []
        self.mends: list[tuple[float, str, Mend]] = []
        self.released, self.led_at = False, time.monotonic()

    def say(self, words: str) -> None:
        self.story.append(f"{time.monotonic() - self.began:6.1f} {words}")

    def wait(self, probe: Callable[[], object], what: str, within_s: float) -> None:
        """Until `probe` is true, while what is due is mended.

        :raises Stuck: it was not within that time.
        """
        deadline = time.monotonic() + within_s
        while not probe():
            if time.monotonic() > deadline:
                raise Stuck(f"not within {within_s:g} s: {what}")
            self.mend_due()
            time.sleep(0.2)

    def mend_due(self, *, all_: bool = False) -> None:
        for due in sorted(self.mends, key=lambda one: one[0]):
            if all_ or due[0] <= time.monotonic():
                self.mends.remove(due)
                self.say(f"mended: {due[1]}")
                try:
                    due[2]()
                except (FleetctlError, OSError, subprocess.SubprocessError) as error:
                    self.say(f"it could not be mended: {error}")

    def play(self) -> None:
        before = [one for one in self.scenario.planned if one.moment is Moment.BEFORE]
        for planned in before:
            self.inflict(planned)
        self.submit()
        for planned in self.scenario.planned:
            if planned not in before:
                self.await_moment(planned)
                self.inflict(planned)

    def submit(self) -> None:
        stage, scenario = self.stage, self.scenario
        text = _SPEC.format(
            nodes=scenario.nodes,
            spares=scenario.spares,
            tasks_per_node=scenario.tasks_per_node,
            checkpoints=stage.checkpoints,
            workdir=EXAMPLES,
            folder=stage.folder,
            program=_PROGRAM,
            steps=STEPS,
            # A daemon needs some seconds to see a loss that is NaN: the training must not be over before
            step_time_ms=STEP_TIME_MS
            if not {Fault.NAN_ONCE, Fault.NAN_ALWAYS} & {*stage.applied}
            else _NAN_STEP_TIME_MS,
            more="--peer-timeout-s 600" if Fault.HANG in stage.applied else "",
        )
        patience = {"FLEETCTL_HANG_FLOOR_S": _HANG_FLOOR_S} if Fault.HANG in stage.applied else {}
        answer = stage.training.cli.json("submit", str(write_spec(stage.folder, text)), **patience)
        stage.training.run_id, stage.training.job_id = answer["run_id"], answer["job_id"]
        self.say(f"submitted as job {answer['job_id']}")

    def await_moment(self, planned: Planned) -> None:
        """The moment of a fault; sooner when the run ends before it."""
        try:
            self.wait(lambda: self.is_moment(planned) or self.is_over(), planned.moment, _MOMENT_S)
            due = time.monotonic() + planned.delay_s
            self.wait(lambda: time.monotonic() >= due, "the delay", 60)
        except Stuck:
            self.say(f"its moment did not come: {planned.fault}, {planned.moment}")

    def is_moment(self, planned: Planned) -> bool:
        training = self.stage.training
        if planned.moment is Moment.TRAINING:
            attempts = training.attempts
            wanted = (
                2 if planned.fault in (Fault.CHECKPOINT_TORN, Fault.CHECKPOINT_FLIPPED) else 1
            )  # an older one is left
            return bool(attempts) and len(training.saved(attempts[-1])) >= wanted
        if planned.moment is Moment.WAITING:
            return self.stage.site.job(self.stage.job_id).get("JobState") == "PENDING"
        if planned.moment is Moment.CLEANING:
            state = self.stage.site.ask("squeue", "-h", "-j", self.stage.job_id, "-o", "%T") or ""
            return state.strip() in ("COMPLETING", "PENDING")
        return True

    def is_over(self) -> bool:
        """Quickly, and only a hint: it has finished, or is held."""
        texts = [
            path.read_text(errors="replace") for path in (self.stage.training.run_dir / "events").glob("job-*.jsonl")
        ]
        return any('"finished"' in text or '"kind": "held"' in text for text in texts)

    def inflict(self, planned: Planned) -> None:
        try:
            did = self.daemons.do(planned) or DEEDS[planned.fault](self.stage, planned)
        except (Missed, FleetctlError, OSError) as missed:
            self.missed.append(planned.fault)
            self.say(f"missed: {planned.fault}: {missed}")
            return
        self.stage.applied.append(planned.fault)
        self.say(f"{planned.fault}: {did.what}")
        if did.mend is not None:
            self.mends.append((time.monotonic() + planned.mend_s, planned.fault, did.mend))

    def end(self) -> tuple[str, str]:
        """The state and reason at the end; what failed has time to come back where a daemon watches.

        :raises Stuck: it does not end.
        """
        found, since = ("", ""), time.monotonic()

        def is_settled() -> bool:
            nonlocal found, since
            seen = self.shown()
            if seen != found:
                self.say(f"it is {seen[0]} {seen[1]}".rstrip())
                found, since = seen, time.monotonic()
            self.release(found[1], time.monotonic() - since)
            if self.is_orphan(found[0]):
                found = ("orphan", "no process leads it, and its job goes on")
                return True
            if found[0] not in _FINISHED or self.mends:
                return False
            patience_s = _DAEMON_S if self.scenario.daemon and found[0] in ("failed", "timeout", "node_fail") else 2.0
            return time.monotonic() - since >= patience_s

        self.wait(is_settled, "the run ends", _END_WITH_DAEMON_S if self.scenario.daemon else _END_S)
        return found

    def is_orphan(self, state: str) -> bool:
        """Nobody has led the run for longer than a successor needs; with a daemon, that is for it to see."""
        if state != "running" or self.scenario.daemon or self.mends or self.stage.heads():
            self.led_at = time.monotonic()
        return time.monotonic() - self.led_at > _ORPHAN_S

    def release(self, reason: str, waited_s: float) -> None:
        """A slurmctld that was killed may start a job again that still runs, drains its node and holds the job: that
        is Slurm's doing, and an admin's to mend."""
        if reason == _LAUNCH_FAILED and not self.released and waited_s > (_DAEMON_S if self.scenario.daemon else 3.0):
            self.released = True
            self.say("an admin releases the job")
            self.stage.site.resume_nodes()
            self.stage.site.ask("scontrol", "release", self.stage.job_id)

    def shown(self) -> tuple[str, str]:
        done = self.stage.training.cli("show", self.stage.training.run_id, "--json")
        if done.returncode != 0:
            return ("unknown", done.stderr.strip()[-200:])
        seen = json.loads(done.stdout)
        return (str(seen["state"]), str(seen["reason"] or ""))

    def stays(self, state: str) -> None:
        """What has ended does not come back: longer than BeginTime is here."""
        attempts, until = self.stage.training.attempts, time.monotonic() + _QUIET_S
        job = self.stage.job_id
        while time.monotonic() < until:
            alive = self.stage.site.ask("squeue", "-h", "-j", job, "-o", "%T", "--states=PENDING,RUNNING,SUSPENDED")
            if (alive or "").strip() or self.stage.training.attempts != attempts:
                self.stage.broken.append(f"it was {state} and came back: {alive} {self.stage.training.attempts}")
                return
            time.sleep(0.5)

    def leaves_nothing(self) -> None:
        """Slurm counts no GPU as used once the job is gone. 22.05.8 leaks them when a job is requeued while a node of
        it is silent and not DOWN: fleetctl never does that, but an admin may, and Slurm itself does."""
        if Fault.REQUEUED in self.stage.applied or not self.stage.training.events("requeue"):
            return
        try:
            self.wait(lambda: not self.stage.site.ask("squeue", "-h", "-a", "-o", "%i"), "an empty queue", _GONE_S)
            self.wait(lambda: not self.stage.site.leaked_gpus(), "free GPUs", _GONE_S)
        except Stuck as stuck:
            self.stage.broken.append(f"{stuck}: {self.stage.site.alive_jobs()} {self.stage.site.leaked_gpus()}")


def play(scenario: Scenario, site: Site, undisturbed: str, evidence: Path) -> Result:
    """One scenario from its beginning to its end; what is there of a run that broke a promise goes to `evidence`."""
    if scenario.daemon:
        site.settle()
    with _stage(scenario, site) as stage, Daemons(stage, count=1 if scenario.daemon else 0) as daemons:
        player = Player(stage, scenario, daemons)
        state, reason, found = "", "", []
        try:
            player.play()
            state, reason = player.end()
            if state in ("cancelled", "held"):
                player.stays(state)
            player.leaves_nothing()
            found = promises.broken(stage, state, reason, undisturbed)
        except (Stuck, AssertionError, FleetctlError, OSError, subprocess.SubprocessError) as error:
            found = [*stage.broken, f"{type(error).__name__}: {error}"]
        player.mend_due(all_=True)
        result = Result(
            seed=scenario.seed,
            daemon=scenario.daemon,
            applied=tuple(stage.applied),
            missed=tuple(player.missed),
            state=state,
            reason=reason,
            attempts=tuple(stage.training.attempts) if stage.training.run_id else (),
            seconds=round(time.monotonic() - player.began, 1),
            broken=tuple(found),
            story=tuple(player.story),
        )
        if found or promises.is_doubtful(stage, state):
            _keep(stage, result, evidence)
        return result


def undisturbed_digest(site: Site) -> str:
    """Of the parameters of a run that nothing happens to."""
    quiet = Scenario(seed=0, daemon=False, nodes=2, tasks_per_node=2, spares=0, planned=())
    with _stage(quiet, site) as stage, Daemons(stage, count=0) as daemons:
        player = Player(stage, quiet, daemons)
        player.play()
        assert player.end()[0] == "completed", (player.story, stage.training.log())
        return stage.training.digest()


@contextmanager
def _stage(scenario: Scenario, site: Site) -> Iterator[Stage]:
    folder, checkpoints = site.folder / f"s{scenario.seed}", site.disk / f"s{scenario.seed}"
    subprocess.run(["rm", "-rf", str(folder), str(checkpoints)], check=True)
    folder.mkdir()
    checkpoints.mkdir()
    (site.folder / "cleaning").write_text("4" if any(p.moment is Moment.CLEANING for p in scenario.planned) else "0")
    training = Training(Cli(site.environ, folder / "runs"), folder, site.sandbox)
    yield Stage(site, training, scenario, folder, checkpoints)
    subprocess.run(["rm", "-rf", str(checkpoints)], check=True)


def _keep(stage: Stage, result: Result, place: Path) -> None:
    """The evidence of a broken promise or a doubtful end: the run, what the daemons said, and Slurm's logs."""
    place = place / f"{result.seed}{'-daemon' if result.daemon else ''}"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(stage.folder, place, symlinks=True, ignore=shutil.ignore_patterns("python"))
    shutil.copytree(stage.site.folder / "slurm" / "log", place / "slurm-log")
    (place / "result.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))
