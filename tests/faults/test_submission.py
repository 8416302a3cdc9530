"""Exactly-once, with everything between the user and Slurm broken on purpose. Slurm itself is the judge."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetctl.clock import SystemClock
from fleetctl.errors import CannotTell
from fleetctl.rundir.model import SubmissionState
from fleetctl.rundir.store import RunDir, Store
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.model import SandboxConfig
from fleetctl.slurm.connect import connect
from fleetctl.submission.decide import Policy
from fleetctl.submission.settle import Settler
from tests.integration.conftest import MakeSandbox
from tests.support import Cli, wait_until, write_spec
from tests.unit.clocks import StillClock

pytestmark = pytest.mark.slurm

# A hung controller is noticed soon, and a requeued job may start soon (AuthInfo, cred_expire)
_SHORT = (("MessageTimeout", "2"), ("AuthInfo", "cred_expire=5"))
SPEC = "name: once\ncommand: sleep 600\n"


@pytest.fixture
def own(make_sandbox: MakeSandbox) -> Sandbox:
    """A cluster whose controller may be stopped; short time-outs, so that a hung one is noticed soon."""
    return make_sandbox(SandboxConfig(nodes=1, gpus=0, settings=_SHORT))


@pytest.fixture
def cli(own: Sandbox, tmp_path: Path) -> Cli:
    return Cli(own.environment(os.environ), tmp_path / "runs")


@pytest.fixture
def spec(tmp_path: Path) -> str:
    return str(write_spec(tmp_path, SPEC))


def pid_of(daemon: str, sandbox: Sandbox) -> str:
    """For a shell text that must signal the controller at one exact moment."""
    state = json.loads((sandbox.directory / "sandbox.json").read_text())
    return str(next(value["pid"] for name, value in state["processes"].items() if name == daemon))


def the_run(cli: Cli) -> RunDir:
    (run,) = Store(cli.runs).runs()
    return run


def test_the_controller_hangs_during_sbatch(cli: Cli, own: Sandbox, spec: str, tmp_path: Path) -> None:
    stop = f'kill -STOP {pid_of("slurmctld", own)}\nexec $REAL "$@"'
    first = cli("submit", spec, PATH=cli.shadow(tmp_path / "bin", "sbatch", stop))
    assert first.returncode == 3, first
    assert f"fleetctl resolve {the_run(cli).run_id}" in first.stderr
    own.ctld.cont()
    wait_until(lambda: cli.jobs(), "the job that sbatch had no answer for")
    second = cli.json("submit", spec)
    assert second["run_id"] == the_run(cli).run_id
    assert cli.jobs() == [f"{second['job_id']} once"]
    assert cli.json("submit", spec)["job_id"] == second["job_id"]


def test_sbatch_is_killed_after_it_submitted(cli: Cli, spec: str, tmp_path: Path) -> None:
    path = cli.shadow(tmp_path / "bin", "sbatch", '$REAL "$@" >/dev/null\nkill -KILL $$')
    first = cli.json("submit", spec, PATH=path)
    assert cli.jobs() == [f"{first['job_id']} once"]
    again = cli.json("submit", spec)
    assert again == {**first, "created": False, "state": again["state"]}, "the job may start meanwhile"


def test_sbatch_is_killed_before_it_sent_anything(cli: Cli, own: Sandbox, spec: str, tmp_path: Path) -> None:
    path = cli.shadow(tmp_path / "bin", "sbatch", "kill -KILL $$")
    cli("cluster", "probe")  # proves that lookups find comments here
    assert cli("submit", spec, PATH=path).returncode == 3
    again = cli("submit", spec)
    assert again.returncode == 3, "150 s have not passed: absence is not certain yet"
    assert [line for line in cli.jobs() if line.endswith("once")] == []
    run = the_run(cli)
    clock = SystemClock()
    soon = Policy(message_timeout_s=1, sbatch_limit_s=0)  # the rule of two lookups in seconds, not minutes
    cluster = run.record().cluster
    settler = Settler(connect(cli.environ, clock), clock, "test", cluster, True, soon)
    wait_until(lambda: settler.settle(run).doubt is None, "two lookups, a second apart")
    assert run.history().state is SubmissionState.VOIDED
    final = cli.json("submit", spec)
    assert final["created"]
    assert [line for line in cli.jobs() if line.endswith("once")] == [f"{final['job_id']} once"]


def test_a_job_that_appears_after_it_was_given_up_ends_itself(cli: Cli, spec: str, tmp_path: Path) -> None:
    path = cli.shadow(tmp_path / "bin", "sbatch", "kill -KILL $$")
    cli("submit", spec, PATH=path)
    run = the_run(cli)
    assert run.claim(1, None, None, "test", SystemClock().now())
    late = cli.slurm("sbatch", "--parsable", str(run.script(1))).strip()
    log = run.path / "logs" / f"slurm-{late}.out"
    wait_until(lambda: log.exists() and "duplicate" in log.read_text(), "the late job's last word")
    assert list((run.path / "attempts").iterdir()) == []
    wait_until(lambda: "ExitCode=14:0" in cli.slurm("scontrol", "show", "job", late), "its status")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGHUP])
def test_the_client_dies_in_the_middle(cli: Cli, spec: str, tmp_path: Path, number: signal.Signals) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    wait = f'touch {started}\nwhile [ ! -e {go} ]; do sleep 0.05; done\nexec $REAL "$@"'
    client = cli.start("submit", spec, PATH=cli.shadow(tmp_path / "bin", "sbatch", wait))
    wait_until(started.exists, "sbatch started")
    client.send_signal(number)
    client.communicate(timeout=10)
    assert client.returncode == (130 if number is signal.SIGINT else -number)
    go.touch()
    wait_until(cli.jobs, "sbatch goes on without its caller")
    wait_until(lambda: (the_run(cli).submission_dir(1) / "sbatch.out").read_text(), "its answer is kept")
    second = cli.json("submit", spec)
    assert cli.jobs() == [f"{second['job_id']} once"]
    assert second["run_id"] == the_run(cli).run_id


def test_two_submits_at_once(cli: Cli, spec: str, tmp_path: Path) -> None:
    path = cli.shadow(tmp_path / "bin", "sbatch", 'sleep 1\nexec $REAL "$@"')
    clients = [cli.start("submit", spec, "--json", PATH=path) for _ in range(3)]
    answers = [json.loads(client.communicate(timeout=60)[0]) for client in clients]
    assert len({answer["job_id"] for answer in answers}) == 1
    assert len({answer["run_id"] for answer in answers}) == 1
    assert [answer["created"] for answer in answers].count(True) == 1
    assert len(cli.jobs()) == 1


def test_again_makes_a_second_run(cli: Cli, spec: str) -> None:
    first, second = cli.json("submit", spec), cli.json("submit", spec, "--again")
    assert first["run_id"] != second["run_id"]
    assert len(cli.jobs()) == 2


def test_a_hung_or_dead_controller_leaves_nothing_behind(cli: Cli, own: Sandbox, spec: str) -> None:
    cli.json("cluster", "probe", "--no-test-job")
    own.ctld.stop()
    hung = cli("submit", spec)
    own.ctld.cont()
    own.ctld.kill()
    dead = cli("submit", spec)
    assert (hung.returncode, dead.returncode) == (3, 3), (hung, dead)
    assert len(dead.stderr.strip().splitlines()) <= 2, dead.stderr
    assert Store(cli.runs).runs() == ()
    own.ctld.start()
    assert cli.json("submit", spec)["created"]


def test_the_controller_dies_between_ping_and_sbatch(cli: Cli, own: Sandbox, spec: str, tmp_path: Path) -> None:
    pid = pid_of("slurmctld", own)
    # Its socket is there until its last moment: a connection that it took and never answered says nothing for certain
    dead = f'while [ -n "$(ls /proc/{pid}/fd 2>/dev/null)" ]; do sleep 0.02; done'
    kill = f'kill -KILL {pid}\n{dead}\nexec $REAL "$@"'
    first = cli("submit", spec, PATH=cli.shadow(tmp_path / "bin", "sbatch", kill))
    assert first.returncode == 3, first
    own.ctld.start()
    second = cli("submit", spec, "--json")
    jobs = [line for line in cli.jobs() if line.endswith("once")]
    assert second.returncode == 0, "a connection that was refused is certain: nothing was sent"
    assert jobs == [f"{json.loads(second.stdout)['job_id']} once"]


def test_a_comment_copied_from_another_run_is_not_taken_for_its_job(cli: Cli, spec: str, tmp_path: Path) -> None:
    copy = '$REAL --comment="$(grep -oP "fleetctl:[^\\"]*" "${@: -1}")" --job-name=once --hold --wrap true >/dev/null'
    path = cli.shadow(tmp_path / "bin", "sbatch", f'{copy}\n$REAL "$@" >/dev/null\nkill -KILL $$')
    answer = cli.json("submit", spec, PATH=path)
    comments = cli.slurm("squeue", "--noheader", "--states=all", "--format=%k").split()
    assert comments == [f"fleetctl:{answer['run_id']}/1"] * 2, "both jobs have it"
    assert str(the_run(cli).script(1)) in cli.slurm("scontrol", "-o", "show", "job", answer["job_id"])


def test_a_job_id_that_belongs_to_another_job_now_is_left_alone(cli: Cli, spec: str) -> None:
    run_id = cli.json("submit", spec)["run_id"]
    run = the_run(cli)
    wait_until(lambda: run.read_claim(1), "the run's own job owns it")
    stranger = cli.slurm("sbatch", "--parsable", "--wrap", "sleep 600").strip()
    claim = json.loads(run.claim_path(1).read_text())
    run.claim_path(1).write_text(json.dumps({**claim, "job_id": stranger}))
    assert cli.json("show", run_id)["job_id"] == stranger
    cancelled = cli.json("cancel", run_id)
    assert not cancelled["cancelled"]
    state = cli.slurm("squeue", "--noheader", "--states=all", f"--jobs={stranger}", "--format=%T").strip()
    assert state in ("PENDING", "RUNNING")


def test_what_the_user_cancelled_stays_cancelled(cli: Cli, spec: str) -> None:
    run = cli.json("submit", spec, "--set", "recovery.requeue=true")
    wait_until(lambda: cli.json("show", run["run_id"])["attempts"], "its first attempt")
    assert cli.json("cancel", run["run_id"])["cancelled"]
    wait_until(lambda: cli.json("show", run["run_id"])["state"] == "cancelled", "cancelled")
    assert cli("wait", run["run_id"]).returncode == 1
    cli.slurm("scontrol", "requeue", run["job_id"])  # Slurm lets anybody resurrect it; the job itself does not
    query = ("squeue", "--noheader", "--states=all", f"--jobs={run['job_id']}", "--format=%T")
    wait_until(lambda: cli.slurm(*query).strip() == "FAILED", "the resurrected job ended itself", within_s=90)
    assert len(cli.json("show", run["run_id"])["attempts"]) == 1
    (log,) = the_run(cli).path.glob("logs/slurm-*.out")
    assert "was cancelled and does not start again" in log.read_text()


def test_cancelling_an_open_submission_ends_its_job(cli: Cli, spec: str, tmp_path: Path) -> None:
    started = tmp_path / "started"
    text = f'$REAL --hold "$@" >/dev/null\necho $$ >{started}\nexec sleep 600'  # the job exists, and nobody is told
    client = cli.start("submit", spec, PATH=cli.shadow(tmp_path / "bin", "sbatch", text))
    wait_until(lambda: started.exists() and started.read_text().strip(), "the job")
    client.kill()
    client.communicate()
    os.kill(int(started.read_text()), signal.SIGKILL)
    run = the_run(cli)
    assert cli.json("show", run.run_id)["state"] == "submission_unknown"
    done = cli.json("cancel", run.run_id)
    assert done["cancelled"]
    assert done["job_id"] is not None
    assert "CANCELLED" in cli.slurm("squeue", "--noheader", "--states=all", "--format=%T")
    again = cli("cancel", run.run_id)
    assert again.returncode == 0, again
    assert "was never submitted" not in again.stdout


def test_a_job_of_another_cluster_is_neither_gone_nor_ours_to_judge(
    cli: Cli, spec: str, make_sandbox: MakeSandbox
) -> None:
    run = cli.json("submit", spec)
    other = Cli(make_sandbox(SandboxConfig(nodes=1, gpus=0)).environment(os.environ), cli.runs)
    assert other.json("ls")[0]["state"] == "unknown"
    again = other.json("submit", spec)
    assert (again["run_id"], again["created"]) == (run["run_id"], False), "never a second writer by accident"
    assert other.jobs() == []
    assert cli.json("ls")[0]["state"] in ("pending", "running")
    refused = other("cancel", run["run_id"])
    assert refused.returncode == 3
    assert "point SLURM_CONF at its cluster" in refused.stderr
    assert the_run(cli).history().cancelled_at is not None, "the wish holds wherever it was made"


def test_two_clusters_that_share_one_cached_profile_are_told_apart(
    cli: Cli, own: Sandbox, spec: str, tmp_path: Path, make_sandbox: MakeSandbox
) -> None:
    """Most sites set no SLURM_CONF; here the commands themselves know their cluster."""
    other = make_sandbox(SandboxConfig(nodes=1, gpus=0))
    paths = {}
    for name, slurm in (("one", own), ("two", other)):
        for command in ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "sacctmgr", "srun"):
            paths[name] = cli.shadow(tmp_path / name, command, f'SLURM_CONF={slurm.slurm_conf} exec $REAL "$@"')
    run = cli.json("submit", spec, PATH=paths["one"], SLURM_CONF="")
    assert cli.json("ls", PATH=paths["two"], SLURM_CONF="")[0]["state"] == "unknown"
    again = cli.json("submit", spec, PATH=paths["two"], SLURM_CONF="")
    assert (again["run_id"], again["created"]) == (run["run_id"], False)
    assert cli("wait", run["run_id"], PATH=paths["two"], SLURM_CONF="").returncode == 3
    assert cli.json("ls", PATH=paths["one"], SLURM_CONF="")[0]["state"] in ("pending", "running")


def test_a_failed_run_that_was_requeued_can_be_cancelled(cli: Cli, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    text = f"name: back\nrecovery: {{requeue: true}}\ncommand: 'test -e {gate} && sleep 600'\n"
    run = cli.json("submit", str(write_spec(tmp_path, text, "back.yaml")))
    assert cli("wait", run["run_id"]).returncode == 1
    gate.touch()
    cli.slurm("scontrol", "requeue", run["job_id"])
    assert cli.json("cancel", run["run_id"])["cancelled"]
    assert cli("wait", run["run_id"]).returncode == 1
    names = [attempt["attempt"] for attempt in cli.json("show", run["run_id"])["attempts"]]
    assert names == ["1.0", "1.1"], "held after two quick failures, and it never ran again"


def test_what_an_administrator_cancelled_stays_cancelled_once_it_was_seen(cli: Cli, spec: str) -> None:
    run = cli.json("submit", spec, "--set", "recovery.requeue=true")
    wait_until(lambda: cli.json("show", run["run_id"])["attempts"], "its first attempt")
    cli.slurm("scancel", run["job_id"])
    assert cli("wait", run["run_id"]).returncode == 1
    cli.slurm("scontrol", "requeue", run["job_id"])
    query = ("squeue", "--noheader", "--states=all", f"--jobs={run['job_id']}", "--format=%T")
    wait_until(lambda: cli.slurm(*query).strip() == "FAILED", "the resurrected job ended itself", within_s=90)
    assert len(cli.json("show", run["run_id"])["attempts"]) == 1


def test_a_stopped_submit_does_not_keep_the_next_one_for_ever(cli: Cli, spec: str, tmp_path: Path) -> None:
    started = tmp_path / "started"
    path = cli.shadow(tmp_path / "bin", "sbatch", f"echo $$ >{started}; exec sleep 600")
    first = cli.start("submit", spec, PATH=path)
    wait_until(lambda: started.exists() and started.read_text().strip(), "sbatch started")
    first.send_signal(signal.SIGSTOP)
    (lock,) = (cli.runs / ".index").glob("*.lock")
    with (
        pytest.raises(CannotTell, match="holds the lock"),
        Store(cli.runs).locked_index(lock.stem, StillClock(), print),
    ):
        raise AssertionError("the lock is held")
    first.kill()
    first.communicate()
    os.kill(int(started.read_text()), signal.SIGKILL)


def test_a_disk_that_is_full_at_the_end_fails_no_training(small_disk: Path, cli: Cli, tmp_path: Path) -> None:
    """The run root fills up while the job runs: its end cannot be written down, and it ended well all the same."""
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)
    gate, started = tmp_path / "gate", tmp_path / "started"
    text = f"name: full\ncommand: touch {started}; while [ ! -e {gate} ]; do sleep 0.1; done\n"
    spec = str(write_spec(tmp_path, text, "full.yaml"))
    run = cli.json("--runs", str(small_disk), "submit", spec)
    wait_until(started.exists, "running")
    with contextlib.suppress(OSError), open(small_disk / "ballast", "wb") as file:
        while True:
            file.write(b"x" * 4096)
    gate.touch()
    query = ("squeue", "--noheader", "--states=all", f"--jobs={run['job_id']}", "--format=%T")
    wait_until(lambda: cli.slurm(*query).strip() == "COMPLETED", "completed")
    assert cli.json("--runs", str(small_disk), "show", run["run_id"])["state"] == "completed"


def test_a_script_submitted_by_hand_ends_itself(cli: Cli, spec: str) -> None:
    answer = cli.json("submit", spec)
    run = the_run(cli)
    wait_until(lambda: run.read_claim(1), "the run's own job owns it")
    twin = cli.slurm("sbatch", "--parsable", "--overcommit", str(run.script(1))).strip()
    log = run.path / "logs" / f"slurm-{twin}.out"
    wait_until(lambda: log.exists() and "duplicate" in log.read_text(), "the twin's last word")
    assert f"job {answer['job_id']} owns it" in log.read_text()
    assert len(list((run.path / "attempts").iterdir())) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB: root is stopped by nothing else."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_or_read_only_run_root_submits_nothing(cli: Cli, spec: str, small_disk: Path) -> None:
    cli.json("cluster", "probe", "--no-test-job")  # its profile lies under the other root
    (small_disk / "ballast").write_bytes(b"x" * 50_000)
    full = cli("--runs", str(small_disk), "submit", spec)
    assert full.returncode == 12, full
    assert "No space left" in full.stderr
    assert Store(small_disk).runs() == ()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    read_only = cli("--runs", str(small_disk), "submit", spec)
    assert read_only.returncode == 12, read_only
    assert "Read-only" in read_only.stderr
    assert cli.jobs() == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [("resources.partition=nowhere", "partition"), ("resources.memory=999T", "Memory")],
)
def test_slurms_refusal_is_shown_in_its_own_words(cli: Cli, spec: str, setting: str, words: str) -> None:
    refused = cli("submit", spec, "--set", setting)
    assert refused.returncode == 10, refused
    assert words in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert cli.slurm("squeue", "--noheader") == ""
    assert cli.json("submit", spec)["created"], "a refused submission blocks nothing"


def test_no_slurm_is_said_at_once(cli: Cli, spec: str, tmp_path: Path) -> None:
    done = cli("submit", spec, PATH=str(tmp_path))
    assert done.returncode == 10
    assert "load the site's Slurm module" in done.stderr
    lost = cli("submit", spec, SLURM_CONF=str(tmp_path / "nowhere"))
    assert lost.returncode == 10
    assert "which does not exist" in lost.stderr
