"""A daemon of these tests over real runs on a real Slurm: its journal, its lease, and what it is told to do."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleetctl.accounting.database import open_database
from fleetctl.clock import SystemClock
from fleetctl.recovery.act import World, act
from fleetctl.recovery.journal import Journal
from fleetctl.recovery.lease import Leader, Place
from fleetctl.recovery.model import Action, Deed, Done, Facts, RunSeen
from fleetctl.recovery.policy import Mode
from fleetctl.render.steps import Style
from fleetctl.rundir.model import EventKind
from fleetctl.rundir.store import RunDir, Store
from fleetctl.sandbox import cluster
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.model import SandboxConfig
from fleetctl.slurm.connect import connect
from fleetctl.slurm.model import AdminLevel
from fleetctl.submission.decide import Policy
from fleetctl.submission.plan import Scripts
from fleetctl.submission.settle import Settler
from fleetctl.submission.submit import Site
from tests.integration.conftest import short_dir
from tests.support import BIN, Cli, wait_until, write_spec

CLOCK = SystemClock()
Settings = tuple[tuple[str, str], ...]

# It runs until `end` says with which status it ends.
SPEC = """\
name: back
resources: {{nodes: {nodes}, gpus_per_node: 2, time: 10m{resources}}}
recovery: {{requeue: {requeue}, max_failures: {failures}{recovery}}}
command: |
  while [ ! -e {folder}/end ]; do sleep 0.1; done
  exit $(cat {folder}/end)
{more}
"""


class Run:
    """One run, and Slurm's own word about it."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self.cli, self.folder = cli, folder
        self.run_id = self.job_id = ""
        self.cluster = connect(cli.environ, CLOCK).config()["ClusterName"]

    def submit(
        self,
        *,
        nodes: int = 1,
        requeue: str = "true",
        failures: int = 1,
        resources: str = "",
        recovery: str = "",
        more: str = "",
    ) -> Run:
        given = {"nodes": nodes, "requeue": requeue, "failures": failures, "resources": resources}
        text = SPEC.format(folder=self.folder, recovery=recovery, more=more, **given)
        answer = self.cli.json("submit", str(write_spec(self.folder, text)))
        self.run_id, self.job_id = answer["run_id"], answer["job_id"]
        return self

    @property
    def dir(self) -> RunDir:
        return RunDir(self.cli.runs / self.run_id)

    def attempts(self, task: int | None = None) -> list[str]:
        started = [event.data for event in self.dir.events() if event.kind is EventKind.ATTEMPT_STARTED]
        return sorted(str(data["attempt"]) for data in started if data["task"] == task)

    def await_attempt(self, name: str, task: int | None = None) -> Run:
        wait_until(lambda: name in self.attempts(task), f"attempt {name}")
        return self

    def requeues(self) -> list[dict[str, Any]]:
        return [event.data for event in self.dir.events() if event.kind is EventKind.REQUEUE]

    def end(self, status: int) -> Run:
        (self.folder / "end").write_text(str(status))
        return self

    def go_on(self) -> Run:
        (self.folder / "end").unlink()
        return self

    def shown(self, what: str, job_id: str | None = None) -> str:
        """One field of scontrol."""
        text = self.cli.slurm("scontrol", "show", "job", job_id or self.job_id, "--oneliner", "--details")
        return str(re.findall(rf"(?:^| ){what}=(\S*)", text)[0])

    def await_state(self, state: str, job_id: str | None = None) -> Run:
        wait_until(lambda: self.shown("JobState", job_id) == state, f"job state {state}")
        return self

    def start(self, restarts: int = 0, raw_id: str = "") -> str:
        return f"{self.cluster}/{raw_id or self.job_id}/{restarts}"

    def seen(self, key: str = "") -> RunSeen:
        """As observe tells it, as far as acting asks."""
        history = self.dir.history()
        facts = Facts(history, 1, may_restart=True, own_format=False, nodes=1, gpus=2)
        return RunSeen(key or self.run_id, self.run_id, None, history.record.user, str(self.dir.path), facts, None, ())


@contextmanager
def three_nodes(settings: Settings) -> Iterator[Sandbox]:
    """A sandbox for the tests of one module, which leave it whole."""
    directory = short_dir()
    try:
        yield cluster.up(SandboxConfig(nodes=3, gpus=2, settings=settings), directory, CLOCK)
    finally:
        cluster.down(directory, CLOCK)
        shutil.rmtree(directory, ignore_errors=True)


def on_cluster(own: Sandbox, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run to be submitted there. The processes that act inherit our environment, as those of a daemon its own."""
    environ = own.environment(os.environ)
    for name, value in environ.items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    return Run(Cli(environ, folder / "runs"), folder)


def a_site(environ: Mapping[str, str], runs: Path, user: str = "root") -> Site:
    slurm = connect(environ, CLOCK)
    name = slurm.config()["ClusterName"]
    settler = Settler(slurm, CLOCK, "here", name, True, Policy(message_timeout_s=5))
    scripts = Scripts(str(BIN / "python3"), Style(), 1001, ())
    return Site(slurm, settler, Store(runs), CLOCK, scripts, user, "here", name, lambda _: None)


@contextmanager
def a_world(database: str, cli: Cli, **changes: Any) -> Iterator[World]:
    """A daemon that leads; `changes` are fields of World."""
    mode, site = changes.get("mode", Mode.OWNER), a_site(cli.environ, cli.runs)
    engine = open_database(database)
    place = Place(site.cluster, "operator" if mode is Mode.OPERATOR else "user root")
    try:
        leader = Leader(engine, place, f"d{os.urandom(4).hex()}", CLOCK, boot_id="boot")
        assert leader.lead()
        journal = Journal(engine, leader, CLOCK)
        world = World(journal, leader, CLOCK, Mode.OWNER, AdminLevel.ADMINISTRATOR, site)
        yield msgspec.structs.replace(world, **changes)
    finally:
        engine.dispose()


def done(world: World, run: Run, deed: Deed, start: str | None = None, key: str = "", **more: Any) -> Done:
    action = Action(deed, key or run.run_id, run.start() if start is None else start, "node3 died", "a rule", **more)
    return act(action, run.seen(key), world)
