"""`fleetctl account reconcile`: beside a stub of sreport on both databases, and beside the real one."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.model import SandboxConfig
from tests.accounting_rows import HOUR_S, T0, writing
from tests.integration.conftest import MakeSandbox
from tests.stub_sacct import StubSlurm
from tests.support import Cli, wait_until

_WINDOW = ("--since", "2026-11-01", "--until", "2026-11-01T04:00", "--utc")
_VISION_S = 8 * 2 * HOUR_S + 4 * 7 * HOUR_S // 2
Site = tuple[Cli, StubSlurm]


@pytest.fixture
def site(tmp_path: Path, database: str) -> Site:
    """Two accounts: `lab` held 2 GPUs for an hour, `vision` 8 for two and then a second job of which half an hour is
    not known yet."""
    stub = StubSlurm(tmp_path / "stub", cluster="lab")
    with writing(database) as rows:
        rows.record(1, account="lab", gpus=2)
        rows.record(2, account="vision", gpus=8, ended_s=T0 + 2 * HOUR_S)
        rows.record(3, account="vision", gpus=4, ended_s=None, alive_s=T0 + 7 * HOUR_S // 2)
    environ = stub.environ({**os.environ, "FLEETCTL_DATABASE": database})
    return Cli(environ, tmp_path / "runs"), stub


def _says(stub: StubSlurm, lab: int, vision: int) -> None:
    """What sreport answers, whatever the window; `root` is the account above both."""
    lines = [("root", "", lab + vision), ("lab", "", lab), ("lab", "ada", lab), ("vision", "", vision)]
    lines += [("vision", "ada", vision // 2), ("vision", "bob", vision - vision // 2)]
    stub.answer("sreport", said="".join(f"{account}|{user}|gres/gpu|{used}\n" for account, user, used in lines))


def test_what_open_records_may_have_held_explains_that_sreport_has_more(site: Site) -> None:
    cli, stub = site
    _says(stub, lab=2 * HOUR_S, vision=_VISION_S + 4 * HOUR_S // 2)

    found = cli.json("account", "reconcile", *_WINDOW)

    rows = {row["account"]: row for row in found["rows"]}
    assert {account: row["verdict"] for account, row in rows.items()} == {"lab": "equal", "vision": "explained"}
    assert (rows["vision"]["ours_gpu_seconds"], rows["vision"]["difference_gpu_seconds"]) == (_VISION_S, -2 * HOUR_S)
    assert "records that go on may have held 7200 more" in rows["vision"]["why"]
    lab = rows["lab"]
    assert (lab["ours_gpu_seconds"], lab["sreport_gpu_seconds"], lab["why"]) == (7200, 7200, None)


def test_what_nothing_explains_ends_with_status_1(site: Site) -> None:
    cli, stub = site
    _says(stub, lab=3 * HOUR_S, vision=_VISION_S)

    done = cli("account", "reconcile", *_WINDOW)

    assert done.returncode == 1
    assert "lab\t7200\t10800\t-3600\t3599\tunexplained\tsreport adds idle reserved time" in done.stdout
    assert "1 of 2 accounts differ by more than 1 %" in done.stderr
    assert cli("account", "reconcile", *_WINDOW, "--tolerance", "40").returncode == 0


def test_a_cluster_that_has_rolled_nothing_up_differs_in_nothing(site: Site) -> None:
    cli, stub = site
    stub.answer("sreport", said="")

    done = cli("account", "reconcile", *_WINDOW)

    assert (done.returncode, done.stdout) == (3, "")
    assert "it is not rolled up yet" in done.stderr


def test_sreport_is_asked_for_whole_hours_alone(site: Site) -> None:
    cli, stub = site
    _says(stub, lab=2 * HOUR_S, vision=(8 * 2 + 4 * 3) * HOUR_S)

    found = cli.json("account", "reconcile", "--since", "2026-10-31T23:30Z", "--until", "2026-11-01T03:59Z")

    assert (found["since"], found["until"]) == ("2026-11-01T00:00:00Z", "2026-11-01T03:00:00Z")
    asked = [word for call in stub.calls("sreport") for word in call if word.startswith(("start=", "end="))]
    assert asked
    assert all(int(word.partition("=uts")[2]) % HOUR_S == 0 for word in asked), asked


@pytest.mark.parametrize(
    ("window", "code", "said"),
    [
        (("--since", "2026-11-01T00:10Z", "--until", "2026-11-01T00:50Z"), 3, "no whole hour"),
        (("--since", "2026-11-05", "--until", "2026-11-06"), 3, "no whole hour"),  # nothing was read of that yet
    ],
)
def test_without_a_whole_known_hour_nothing_can_be_told(
    site: Site, window: tuple[str, ...], code: int, said: str
) -> None:
    done = site[0]("account", "reconcile", *window)

    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_the_database_of_another_cluster_is_refused(tmp_path: Path, fresh_database: Callable[[str], str]) -> None:
    database = fresh_database("sqlite")
    with writing(database, "elsewhere") as rows:
        rows.record(1)
    environ = StubSlurm(tmp_path / "stub", cluster="lab").environ({**os.environ, "FLEETCTL_DATABASE": database})

    done = Cli(environ, tmp_path / "runs")("account", "reconcile", *_WINDOW)

    assert done.returncode == 2
    assert "no records of cluster lab" in done.stderr


class RealBooks:
    """slurmdbd's own tables: the only way to a past that a sandbox of some seconds does not have."""

    def __init__(self, sandbox: Sandbox, cli: Cli) -> None:
        self._sandbox, self._cli = sandbox, cli
        self._cluster = cli.slurm("sacctmgr", "--noheader", "--parsable2", "list", "cluster", "format=cluster").strip()

    def run(self, *options: str, meanwhile: Callable[[str], None] = lambda job: None, took: str = "2") -> None:
        """One job, from its submission to its record in slurmdbd."""
        words = ("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap=sleep {took}")
        job = self._cli.slurm(*words).strip()
        meanwhile(job)
        is_told = ("sacct", "--noheader", "-X", "-j", job, "--format=State")
        wait_until(lambda: "COMPLETED" in self._cli.slurm(*is_told), f"job {job} has its record")

    def suspend_for(self, seconds: int) -> Callable[[str], None]:
        def suspend(job: str) -> None:
            state = ("squeue", "--noheader", "--format=%T", "-j", job)
            wait_until(lambda: "RUNNING" in self._cli.slurm(*state), "it runs")
            self._cli.slurm("scontrol", "suspend", job)
            time.sleep(seconds)  # what is measured, not what is waited for
            self._cli.slurm("scontrol", "resume", job)

        return suspend

    def move_back(self, seconds: int) -> None:
        """Everything happened so much earlier."""
        for table, columns in {
            "job": ("time_submit", "time_eligible", "time_start", "time_end"),
            "step": ("time_start", "time_end"),
            "suspend": ("time_start", "time_end"),
        }.items():
            moved = ", ".join(f"{column} = {column} - {seconds}" for column in columns)
            self._sql(f"UPDATE {self._cluster}_{table}_table SET {moved}")

    def roll_up_from(self, start_s: int) -> None:
        """slurmdbd rolls up what it has not when it starts; `start_s` is a full hour."""
        columns = ", ".join(f"{name}_rollup = {start_s}" for name in ("hourly", "daily", "monthly"))
        self._sql(f"UPDATE {self._cluster}_event_table SET time_start = {start_s - 5} WHERE time_end = 0")
        self._sql(f"UPDATE {self._cluster}_last_ran_table SET {columns}")
        self._sandbox.dbd.kill()
        self._sandbox.dbd.start()

    def _sql(self, statement: str) -> None:
        socket = self._sandbox.directory / "run" / "mysql.sock"
        user = pwd.getpwuid(os.geteuid()).pw_name
        words = ["mariadb", "--no-defaults", f"--socket={socket}", f"--user={user}", "slurm_acct_db", "-e", statement]
        subprocess.run(words, check=True, capture_output=True, timeout=60)


@pytest.mark.slurm
def test_beside_the_real_sreport_nothing_differs(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    sandbox = make_sandbox(SandboxConfig(nodes=2, gpus=8, accounting=True))
    environ = {**sandbox.environment(os.environ), "FLEETCTL_DATABASE": str(tmp_path / "accounting.db")}
    cli = Cli(environ, tmp_path / "runs")
    books = RealBooks(sandbox, cli)
    reconcile = ("account", "reconcile", "--since", "1d", "--tolerance", "0")
    books.run("--nodes=2", "--gpus-per-node=8")
    books.run("--gpus-per-node=4", meanwhile=books.suspend_for(3), took="4")
    books.move_back(2 * HOUR_S)
    assert cli("account", "sync").returncode == 0

    done = cli(*reconcile)
    assert (done.returncode, "it is not rolled up yet" in done.stderr) == (3, True), done.stderr

    books.roll_up_from((int(time.time()) // HOUR_S - 5) * HOUR_S)
    wait_until(lambda: cli(*reconcile).returncode != 3, "it is rolled up")
    (row,) = cli.json(*reconcile)["rows"]
    spans = cli.slurm("sacct", "-X", "-n", "-P", "-S", "now-1day", "-o", "Start,End,Suspended")
    first, second = (line.split("|") for line in spans.splitlines())
    assert second[2] != "00:00:00", "suspended GPUs are held, for both"
    assert row["verdict"] == "equal"
    assert row["sreport_gpu_seconds"] == 16 * _seconds(*first[:2]) + 4 * _seconds(*second[:2])


def _seconds(start: str, end: str) -> int:
    return round((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds())
