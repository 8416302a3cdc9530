"""The text adapter on real daemons: the contract, the environment it passes on, and a controller that is gone."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from fleetctl import process
from fleetctl.errors import SlurmMissing, SlurmUnreachable
from fleetctl.sandbox.model import SandboxConfig
from fleetctl.slurm import profile
from fleetctl.slurm.commands import Limits
from fleetctl.slurm.connect import connect
from fleetctl.slurm.model import Accepted, AdminLevel, BaseState, JobId, NotSent, SubmitAnswer, Unknown
from fleetctl.slurm.port import Slurm
from fleetctl.slurm.prove import prove_comments
from fleetctl.slurm.text import TextSlurm
from tests.contract.slurm import CLOCK, SLEEPER, SlurmContract, Submitter, until
from tests.integration.conftest import MakeSandbox

pytestmark = pytest.mark.slurm
ME = pwd.getpwuid(os.geteuid()).pw_name
QUICK = (("MessageTimeout", "2"),)


class TestTextSlurm(SlurmContract):
    @pytest.fixture
    def slurm(self, slurm_env: Mapping[str, str]) -> Slurm:
        return TextSlurm(slurm_env)

    @pytest.fixture
    def user(self) -> str:
        return ME


def submitted(slurm: Slurm, folder: Path, *args: str, script: str = SLEEPER) -> SubmitAnswer:
    path = folder / "job.sh"
    path.write_text(script)
    number = len(list(folder.iterdir()))
    return slurm.submit(
        path, stdout=folder / f"{number}.out", stderr=folder / f"{number}.err", cwd=folder, extra_args=args
    )


def test_a_reservation_is_told_with_its_nodes_times_and_flags(slurm_env: Mapping[str, str]) -> None:
    """It is far away, so that no other test's job meets it."""
    made = ("reservationname=service-1", "starttime=2040-01-01T00:00:00", "duration=60", "nodes=node[1-2]")
    environ = {**os.environ, **slurm_env, "TZ": "UTC"}
    argv = ("scontrol", "create", "reservation", *made, "flags=maint,ignore_jobs", "users=root")
    assert process.run(argv, timeout_s=60.0, env=environ).returncode == 0
    try:
        (found,) = TextSlurm(slurm_env).reservations()
    finally:
        process.run(("scontrol", "delete", "reservationname=service-1"), timeout_s=60.0, env=environ)
    assert (found.name, found.node_list) == ("service-1", "node[1-2]")
    assert found.starts_at == datetime(2040, 1, 1, tzinfo=UTC)
    assert found.ends_at == datetime(2040, 1, 1, 1, tzinfo=UTC)
    assert {"MAINT", "IGNORE_JOBS"} <= found.flags


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC"])
def test_times_are_the_same_instant_in_every_time_zone(slurm_env: Mapping[str, str], tmp_path: Path, zone: str) -> None:
    slurm = TextSlurm({**slurm_env, "TZ": zone, "SLURM_TIME_FORMAT": "%H:%M"})
    answer = submitted(slurm, tmp_path, "--hold", "--begin=2040-01-01T00:00:00", "--output=/dev/null")
    assert isinstance(answer, Accepted)
    (job,) = slurm.jobs(ids=[answer.job_id])
    slurm.cancel(answer.job_id)
    offset = {"Asia/Tokyo": -9, "America/New_York": 5, "UTC": 0}[zone]
    assert job.start_time == datetime(2040, 1, 1, tzinfo=UTC) + timedelta(hours=offset)  # begin is read in the user's
    assert job.submit_time is not None
    assert abs(CLOCK.now() - job.submit_time) < timedelta(seconds=30)


def test_the_job_inherits_the_users_environment_but_no_other_jobs(slurm_env: Mapping[str, str], tmp_path: Path) -> None:
    inherited = {"TZ": "Asia/Tokyo", "LC_TIME": "C.UTF-8", "MY_WORD": "a b\n'c'", "OMP_NUM_THREADS": "3"}
    foreign = {"SLURM_CPUS_PER_TASK": "7", "SLURM_CPU_BIND": "x", "SBATCH_PARTITION": "nope", "PMI_RANK": "3"}
    slurm = TextSlurm({**slurm_env, **inherited, **foreign, "SQUEUE_FORMAT": "%u", "SLURM_EXIT_ERROR": "9"})
    seen = tmp_path / "seen"
    answer = submitted(
        slurm, tmp_path, "--output=/dev/null", script=f"#!/bin/sh\nenv -0 > {seen}.x\nmv {seen}.x {seen}\n"
    )
    assert isinstance(answer, Accepted)
    until(seen.exists)
    environ = dict(line.split("=", 1) for line in seen.read_text().split("\0") if line)
    assert {name: environ.get(name) for name in inherited} == inherited
    assert not {"SLURM_CPU_BIND", "SBATCH_PARTITION", "PMI_RANK", "SLURM_BITSTR_LEN", "SLURM_TIME_FORMAT"} & set(
        environ
    )
    assert environ.get("SLURM_CPUS_PER_TASK") in {None, "1"}
    assert environ["SLURM_CONF"] == slurm_env["SLURM_CONF"]


def test_a_machine_without_slurm_is_named(slurm_env: Mapping[str, str], tmp_path: Path) -> None:
    slurm = TextSlurm({**slurm_env, "PATH": str(tmp_path)})
    with pytest.raises(SlurmMissing) as caught:
        slurm.jobs()
    assert caught.value.remedy
    with pytest.raises(SlurmMissing):
        submitted(slurm, tmp_path)
    assert not list(tmp_path.glob("*.out"))


def test_a_wrapper_that_hides_the_id_leaves_it_unknown(slurm_env: Mapping[str, str], tmp_path: Path) -> None:
    answer = submitted(TextSlurm(slurm_env), tmp_path, "--quiet", "--hold", "--comment=hidden", "--output=/dev/null")
    assert isinstance(answer, Unknown)
    (job,) = [job for job in TextSlurm(slurm_env).jobs(user=ME) if job.comment == "hidden"]
    TextSlurm(slurm_env).cancel(job.id)


def test_what_a_submission_said_stays_in_its_files(slurm_env: Mapping[str, str], tmp_path: Path) -> None:
    slurm = TextSlurm(slurm_env)
    answer = submitted(slurm, tmp_path, "--hold", "--output=/dev/null")
    assert isinstance(answer, Accepted)
    slurm.cancel(answer.job_id)
    (out,) = tmp_path.glob("*.out")
    assert out.read_text() == f"Submitted batch job {answer.job_id}\n"
    with pytest.raises(FileExistsError):
        slurm.submit(tmp_path / "job.sh", stdout=out, stderr=tmp_path / "e", cwd=tmp_path)


def test_a_hung_controller_is_unreachable_and_a_submission_to_it_unknown(
    make_sandbox: MakeSandbox, tmp_path: Path
) -> None:
    made = make_sandbox(SandboxConfig(nodes=1, gpus=0, settings=QUICK))
    slurm = TextSlurm(made.environment(os.environ))
    made.ctld.stop()
    for call in (slurm.ping, slurm.jobs, slurm.nodes, slurm.config, slurm.partitions, lambda: slurm.cancel(JobId(1))):
        with pytest.raises(SlurmUnreachable):
            call()
    with pytest.raises(SlurmUnreachable):
        TextSlurm(made.environment(os.environ), Limits(query_s=0.2)).jobs(ids=[JobId(1)])
    timed_out = submitted(slurm, tmp_path, "--hold", "--comment=ghost", "--output=/dev/null")
    assert isinstance(timed_out, Unknown)
    assert "Socket timed out" in timed_out.text
    killed = submitted(
        TextSlurm(made.environment(os.environ), Limits(submit_s=1)), tmp_path, "--hold", "--comment=ghost"
    )
    assert isinstance(killed, Unknown)
    made.ctld.cont()
    until(lambda: sum(job.comment == "ghost" for job in slurm.jobs()) == 2)  # both are jobs: unknown was the truth


def test_a_controller_that_is_down_got_nothing(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    made = make_sandbox(SandboxConfig(nodes=1, gpus=0, settings=QUICK))
    slurm = TextSlurm(made.environment(os.environ))
    made.ctld.kill()
    for call in (slurm.ping, slurm.jobs, slurm.nodes, slurm.config):
        with pytest.raises(SlurmUnreachable):
            call()
    assert isinstance(submitted(slurm, tmp_path, "--hold", "--comment=lost"), NotSent)
    made.ctld.start()
    until(lambda: slurm.jobs() == ())


def test_accounting_has_one_record_per_run(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    made = make_sandbox(SandboxConfig(nodes=1, accounting=True))
    slurm = TextSlurm({**made.environment(os.environ), "TZ": "Asia/Tokyo"})
    tokyo = timezone(timedelta(hours=9))
    began = CLOCK.now().astimezone(tokyo) - timedelta(seconds=2)
    odd = "a\nb\x1fc"
    answer = submitted(slurm, tmp_path, "--requeue", f"--comment={odd}", "--output=/dev/null")
    assert isinstance(answer, Accepted)
    submit = Submitter(slurm, tmp_path)
    until(lambda: submit.base(answer.job_id) is BaseState.RUNNING)
    environ = made.environment(os.environ)
    requeue = process.run(["scontrol", "requeue", str(answer.job_id)], timeout_s=30, env=environ)
    assert requeue.returncode == 0
    until(lambda: submit.base(answer.job_id) is BaseState.PENDING)
    slurm.cancel(answer.job_id)
    until(lambda: len(slurm.history(since=began, user=ME, ids=[answer.job_id])) == 2)
    until(lambda: slurm.history(since=began)[-1].state.base is BaseState.CANCELLED)
    first, last = slurm.history(since=began)
    assert (first.id, first.name, first.user, first.raw_id) == (answer.job_id, "job.sh", ME, answer.job_id.base)
    assert not first.state.is_terminal  # REQUEUED
    assert last.state.is_terminal
    assert first.start_time is not None
    assert began <= first.start_time <= CLOCK.now()
    assert {first.comment, last.comment} == {odd}
    assert first.db_index is not None
    assert slurm.history(since=began, ids=[JobId(999_999)]) == ()
    until(
        lambda: slurm.history(since=CLOCK.now().astimezone(tokyo)) == ()
    )  # since is an instant, not a time of the user's zone
    assert slurm.admin_level(ME) is AdminLevel.ADMINISTRATOR
    assert slurm.admin_level("nosuchuser") is AdminLevel.NONE
    assert profile.probe(slurm, CLOCK.now(), Path("/nonexistent")).accounting
    made.dbd.stop()
    with pytest.raises(SlurmUnreachable):
        TextSlurm(environ, Limits(accounting_s=2)).history(since=began)
    made.dbd.kill()
    for call in (lambda: slurm.history(since=began), lambda: slurm.admin_level(ME)):
        with pytest.raises(SlurmUnreachable):
            call()
    assert [job.id for job in slurm.jobs()] == [answer.job_id]  # the controller needs no database to answer


def test_comments_are_proved_and_nothing_stays(slurm_env: Mapping[str, str], tmp_path: Path) -> None:
    slurm = connect(slurm_env, CLOCK)
    proof = prove_comments(slurm, ME, tmp_path)
    assert proof.comments == "found"
    assert proof.notes[-1].endswith("was cancelled")
    left = [job for job in slurm.jobs(user=ME) if job.name == "fleetctl-probe" and not job.state.is_terminal]
    assert left == []


def test_a_refused_test_job_proves_nothing(slurm_env: Mapping[str, str], tmp_path: Path) -> None:
    proof = prove_comments(connect(slurm_env, CLOCK), ME, tmp_path, ["--partition=nope"])
    assert proof.comments == "unproven"
    assert "invalid partition specified: nope" in proof.notes[0]


def test_a_profile_of_the_sandbox(slurm_env: Mapping[str, str]) -> None:
    found = profile.probe(connect(slurm_env, CLOCK), CLOCK.now(), Path("/nonexistent"), proved=profile.Comments.FOUND)
    assert (found.gpu_style, found.memory_style, found.comments) == ("gpus_per_node", "per_node", "found")
    assert found.slurm_conf == slurm_env["SLURM_CONF"]
    assert (found.accounting, found.rights) == (False, "administrator")
    assert [each.is_default for each in found.partitions] == [True]


def test_a_port_is_a_number_and_never_20_5K(make_sandbox: MakeSandbox) -> None:
    """sinfo writes 20992 as 20.50K unless it is told not to."""
    own = make_sandbox(SandboxConfig(nodes=1))
    environ = own.environment(os.environ)
    conf = Path(environ["SLURM_CONF"])
    conf.write_text(re.sub(r"(NodeName=node1 .*)Port=\d+", r"\1Port=20992", conf.read_text()))
    assert process.run(("scontrol", "reconfigure"), timeout_s=30, env=environ).returncode == 0
    assert TextSlurm(environ).endpoints(["node1"]) == {"node1": ("127.0.0.1", 20992)}
