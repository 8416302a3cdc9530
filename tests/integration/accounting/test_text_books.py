"""Accounting by real commands on a real slurmdbd: what each kind of job leaves there, and a slurmdbd that is gone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from fleetctl import process
from fleetctl.accounting.framing import text_of
from fleetctl.accounting.model import Record, StepRecord
from fleetctl.accounting.rows import parse_record, parse_step, record_key
from fleetctl.clock import SystemClock
from fleetctl.errors import SlurmRefused, SlurmUnreachable
from fleetctl.sandbox import cluster
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.model import SandboxConfig
from fleetctl.slurm.commands import Limits
from fleetctl.slurm.text_books import TextBooks
from tests.contract.slurm import CLOCK, until
from tests.integration.conftest import MakeSandbox, short_dir

pytestmark = pytest.mark.slurm
CONFIG = SandboxConfig(
    nodes=2,
    accounting=True,
    settings=(("PriorityType", "priority/multifactor"), ("PriorityCalcPeriod", "1"), ("MessageTimeout", "3")),
)


@pytest.fixture(scope="module")
def accounted() -> Iterator[Sandbox]:
    """Two nodes with 8 fake GPUs each, slurmdbd and MariaDB; nobody stops a part of it."""
    directory = short_dir()
    try:
        yield cluster.up(CONFIG, directory, SystemClock())
    finally:
        cluster.down(directory, SystemClock())
        shutil.rmtree(directory, ignore_errors=True)


class Site:
    """A sandbox, its books, and people who use it."""

    def __init__(self, made: Sandbox, limits: Limits = Limits()) -> None:
        self.made = made
        self.environ = made.environment(os.environ)
        self.books = TextBooks(self.environ, limits)

    def run(self, *argv: str) -> str:
        said = process.run(argv, timeout_s=60, env=self.environ)
        assert said.returncode == 0, said.stderr
        return said.stdout

    def submit(self, *options: str, script: str = "sleep 600") -> int:
        argv = ("sbatch", "--parsable", "--output=/dev/null", *options)
        return int(self.run(*argv, *([] if ":" in options else [f"--wrap={script}"])))

    def records(self, *jobs: int) -> list[Record]:
        """Of these jobs, by their submission and then by their raw id."""
        found = self.books.records_of(jobs, 0)
        assert not found.unframed
        read = [parse_record(found.columns, row) for row in found.rows]
        return sorted(read, key=lambda one: (one.submitted_s or 0, one.raw_id, int(one.record)))

    def steps(self, *jobs: int) -> list[StepRecord]:
        found = self.books.steps(jobs, 0)
        return [parse_step(found.columns, row) for row in found.rows]

    def shown(self, since_s: int = 0) -> set[int]:
        """The jobs that a window shows."""
        found = self.books.records(since_s, None)
        return {parse_record(found.columns, row).job_id for row in found.rows}

    def ended(self, *jobs: int) -> list[Record]:
        """The records once all of them have ended and are whole.

        The end may arrive before the beginning: for seconds slurmdbd knows neither name nor partition nor Eligible.
        """
        until(lambda: bool(found := self.records(*jobs)) and all(one.ended_s and one.partition for one in found))
        return self.records(*jobs)


@pytest.fixture
def site(accounted: Sandbox) -> Iterator[Site]:
    used = Site(accounted)
    yield used
    used.run("scancel", "--user=root")


def test_a_name_may_hold_any_byte_and_every_job_has_its_record(site: Site) -> None:
    """slurmdbd itself keeps a question mark of what is no UTF-8, and no double quotes."""
    names = {}
    for first in range(1, 256, 16):
        raw = os.fsdecode(bytes(range(first, min(first + 16, 256))))
        names[site.submit(f"--job-name={raw}", "--begin=now+1hour")] = raw
    names[site.submit("--job-name=a\nb", "--hold")] = "a\nb"
    until(lambda: len(site.records(*names)) == len(names))
    kept = {one.job_id: one.name for one in site.records(*names)}
    for job, raw in names.items():
        assert kept[job] == text_of("".join("?" if char > "\x7f" else char for char in raw.replace('"', "`")))


def test_a_requeued_job_has_a_record_for_each_attempt_and_steps_under_each(site: Site) -> None:
    job = site.submit("--gpus=3", "--requeue", script="srun sleep 600")
    until(lambda: {one.step for one in site.steps(job)} >= {"batch", "0"})
    site.run("scontrol", "requeue", str(job))
    until(lambda: len(site.records(job)) == 2)
    site.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    until(lambda: len(site.steps(job)) >= 4)
    site.run("scancel", str(job))
    first, second = site.ended(job)
    assert first.record != second.record
    assert (first.state, second.state) == ("REQUEUED", "CANCELLED")
    assert (first.job_id, first.raw_id) == (second.job_id, second.raw_id) == (job, job)
    assert (first.gpus, first.gpu_models, second.gpus) == (3, "gpu=3", 3)
    assert (second.submitted_s or 0) >= (first.ended_s or 0)
    assert second.state_by == os.getuid()
    until(lambda: all(one.ended_s for one in site.steps(job)))
    assert {(one.record, one.step) for one in site.steps(job)} == {
        (record, step) for record in (first.record, second.record) for step in ("batch", "0")
    }


def test_the_elements_of_an_array_and_its_rest_are_records(site: Site) -> None:
    job = site.submit("--array=1-5%2", "--gpus=1")
    until(lambda: sum(one.state == "RUNNING" for one in site.records(job)) == 2)
    found = site.records(job)
    assert {one.array_index for one in found if one.state == "RUNNING"} == {1, 2}
    (rest,) = [one for one in found if one.pending_tasks]
    assert (rest.job_id, rest.array_index, rest.pending_tasks, rest.gpus) == (job, None, "3-5%2", 0)
    alive = {one.raw_id for one in found if one.state == "RUNNING"}
    assert alive <= site.books.alive()
    assert len(alive) == 2


def test_the_components_of_a_hetjob_are_records_of_its_leader(site: Site) -> None:
    job = site.submit("--gpus=2", "--wrap=sleep 600", ":", "--nodes=1", "--wrap=sleep 600")
    until(lambda: len(site.records(job)) == 2)
    found = site.records(job)
    assert [(one.job_id, one.het_offset) for one in found] == [(job, 0), (job, 1)]
    assert found[0].raw_id == job
    assert found[1].raw_id > job


def test_what_was_cancelled_while_it_was_held_shows_by_its_number_only(site: Site) -> None:
    job = site.submit("--hold", "--gpus=1")
    until(lambda: bool(site.records(job)))
    site.run("scancel", str(job))
    (found,) = site.ended(job)
    assert (found.state, found.started_s, found.eligible_s, found.gpus) == ("CANCELLED", None, None, 0)
    assert job not in site.shown()


def test_a_suspended_job_is_alive_and_its_time_stands_still(site: Site) -> None:
    job = site.submit("--gpus=1")
    until(lambda: job in site.books.alive())
    site.run("scontrol", "suspend", str(job))
    until(lambda: [one.state for one in site.records(job)] == ["SUSPENDED"])
    assert job in site.books.alive()
    CLOCK.sleep(1.1)  # Slurm counts whole seconds
    site.run("scontrol", "resume", str(job))
    site.run("scancel", str(job))
    (found,) = site.ended(job)
    (raw,) = site.run("sacct", "-DXnP", "-j", str(job), "-o", "ElapsedRaw").split()
    assert found.suspended_s
    assert found.started_s is not None
    assert found.ended_s is not None
    assert found.ended_s - found.started_s == int(raw) + found.suspended_s
    until(lambda: job not in site.books.alive())


def test_a_window_shows_what_is_open_and_what_ended_in_it(site: Site) -> None:
    done, going, waiting = site.submit(script="true"), site.submit(), site.submit("--begin=now+1hour")
    (ended,) = site.ended(done)
    until(lambda: site.shown() >= {done, going})
    assert ended.ended_s is not None
    assert ended.submitted_s is not None
    assert done in site.shown(ended.ended_s)
    assert done not in site.shown(ended.ended_s + 1)
    assert going in site.shown(ended.ended_s + 1)
    assert site.books.records(0, ended.submitted_s - 3600).rows == ()
    assert waiting not in site.shown()  # not eligible yet
    assert {one.job_id for one in site.records(waiting, going)} == {waiting, going}


def test_no_jobs_are_no_question(site: Site) -> None:
    assert site.books.records_of((), 0).rows == ()
    assert site.books.steps((), 0).rows == ()
    assert site.books.records_of((4_000_000,), 0).rows == ()


def test_the_users_own_environment_changes_no_answer(site: Site) -> None:
    job = site.submit(script="exit 3")
    (before,) = site.ended(job)
    odd = {"TZ": "Asia/Tokyo", "SLURM_TIME_FORMAT": "relative", "SACCT_FORMAT": "jobid", "SLURM_BITSTR_LEN": "3"}
    books = TextBooks({**site.environ, **odd, "SACCT_FEDERATION": "1", "LC_ALL": "C"})
    found = books.records_of((job,), 0)
    assert [parse_record(found.columns, row) for row in found.rows] == [before]
    assert (before.state, before.exit_status, before.cause) == ("FAILED", 3, "program")
    assert record_key(found.columns, found.rows[0]) == before.record


def test_what_nodes_went_through_is_read(site: Site) -> None:
    began_s = int(CLOCK.now().timestamp())
    reason = "nvlink|17 of 18\nnode1|1|2"
    site.run("scontrol", "update", "NodeName=node2", "State=DRAIN", f"Reason={reason}")
    until(lambda: bool(site.books.node_events(began_s)))
    (event,) = site.books.node_events(began_s)
    assert (event.node, event.reason, event.user, event.ended_s) == ("node2", reason, "root", None)
    assert "DRAIN" in event.state
    assert abs(event.started_s - began_s) <= 5
    site.run("scontrol", "update", "NodeName=node2", "State=RESUME")
    until(lambda: site.books.node_events(began_s)[0].ended_s is not None)


def test_the_cluster_its_queue_and_who_sees_all(site: Site) -> None:
    assert site.books.cluster() in site.run("scontrol", "show", "config")
    until(lambda: site.books.waiting() == 0)
    assert site.books.sees_all("root") is True
    assert site.books.sees_all("nobody") is True  # PrivateData is none


def test_fair_share_is_told_where_it_counts(site: Site) -> None:
    found = {(share.account, share.user): share for share in site.books.shares()}
    assert ("root", "") in found
    mine = next(share for (account, user), share in found.items() if user == "root" and account != "root")
    assert mine.raw_shares == 1
    assert mine.norm_shares is not None


def test_a_slurmdbd_that_is_gone_is_an_error_and_what_waits_for_it_arrives_later(make_sandbox: MakeSandbox) -> None:
    made = make_sandbox(SandboxConfig(nodes=1, accounting=True, settings=(("MessageTimeout", "3"),)))
    site = Site(made)
    before = site.submit(script="true")
    site.ended(before)
    made.dbd.kill()
    began_s = int(CLOCK.now().timestamp())
    late = site.submit("--gpus=2", script="true")
    questions: tuple[Callable[[], object], ...] = (
        lambda: site.books.records(0, None),
        lambda: site.books.records_of((before,), 0),
        lambda: site.books.steps((before,), 0),
        lambda: site.books.node_events(0),
        lambda: site.books.used(3_600_000, 7_200_000),
        lambda: site.books.sees_all("root"),
    )
    for ask in questions:
        with pytest.raises(SlurmUnreachable):
            ask()
    until(lambda: late not in site.books.alive() and site.books.waiting() > 0)
    with pytest.raises(SlurmRefused, match="no fair share"):
        site.books.shares()
    ended_by_s = int(CLOCK.now().timestamp())
    made.dbd.start()
    (found,) = site.ended(late)
    assert began_s <= (found.ended_s or 0) <= ended_by_s
    assert found.gpus == 2
    until(lambda: site.books.waiting() == 0)


def test_a_slurmdbd_that_hangs_is_an_error_in_time(make_sandbox: MakeSandbox) -> None:
    made = make_sandbox(SandboxConfig(nodes=1, accounting=True))
    Site(made).books.records(0, None)  # its columns are known now
    made.dbd.stop()
    try:
        with pytest.raises(SlurmUnreachable, match="did not end within 1 s"):
            Site(made, Limits(accounting_s=1)).books.records(0, None)
    finally:
        made.dbd.cont()


def test_private_records_are_known_to_be_private_and_slurms_own_count_is_read(make_sandbox: MakeSandbox) -> None:
    made = make_sandbox(SandboxConfig(nodes=1, accounting=True))
    site = Site(made)
    (job,) = site.ended(site.submit("--gpus=2", script="sleep 2"))
    hour_s = int(CLOCK.now().timestamp()) // 3600 * 3600 - 2 * 3600
    assert job.started_s is not None
    assert job.ended_s is not None
    conf = made.directory / "etc" / "slurmdbd.conf"
    conf.write_text(conf.read_text() + "PrivateData=jobs,usage\n")
    made.dbd.kill()
    _move_back(made.directory, site.books.cluster(), job.started_s - hour_s - 600, hour_s)
    made.dbd.start()
    until(lambda: site.books.sees_all("root") is True)
    assert site.books.sees_all("nobody") is False
    until(lambda: bool(site.books.used(hour_s, hour_s + 3600)))  # slurmdbd adds up the hours that have passed
    used = {(line.account, line.user): line.seconds for line in site.books.used(hour_s, hour_s + 3600)}
    assert used["root", ""] == used["sandbox", "root"] == 2 * (job.ended_s - job.started_s)


def _move_back(directory: Path, name: str, seconds: int, hour_s: int) -> None:
    """All jobs into the hour that begins at `hour_s`, which slurmdbd has then still to add up."""
    moved = ", ".join(f"time_{what} = time_{what} - {seconds}" for what in ("submit", "eligible", "start", "end"))
    sql = f"UPDATE {name}_job_table SET {moved}; UPDATE {name}_event_table SET time_start = {hour_s};"
    sql += f"INSERT INTO {name}_last_ran_table VALUES ({hour_s}, {hour_s}, {hour_s});"
    argv = ("mysql", f"--socket={directory}/run/mysql.sock", "slurm_acct_db", f"--execute={sql}")
    environ: Mapping[str, str] = {"PATH": os.environ["PATH"]}
    assert process.run(argv, timeout_s=60, env=environ).returncode == 0
