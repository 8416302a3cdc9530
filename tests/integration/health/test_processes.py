"""Ending what a job left running, with real processes: the job's own go, all others stay."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from fleetctl.health import process_table
from fleetctl.health import processes as ending
from fleetctl.health.process_table import Job, Seen, look, see
from fleetctl.health.processes import Ended, World, end_processes, here, proof, spared
from tests.integration.health.jobs import STUBBORN, UID, Processes, descendants, lives

JOB = Job("7001", UID)
SEEN = Seen(1234, 5, UID, "python", "S", "7001", "")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="processes of another user need root"),
    pytest.mark.usefixtures("as_a_service"),
]


def end(job: Job = JOB, within_s: float = 20.0, world: World | None = None) -> Ended:
    return end_processes(job, world or here(), until=time.monotonic() + within_s)


def test_processes_of_the_job_end_and_nothing_else_of_the_user_does(ours: Processes) -> None:
    mine = [ours.start(job="7001") for _ in range(3)]
    other_job, login = ours.start(job="7002"), ours.start()
    ended = end()
    assert [lives(process) for process in mine] == [False] * 3
    assert (lives(other_job), lives(login)) == (True, True)
    assert (ended.killed, ended.left) == (3, ())
    assert ended.others is not None
    assert {seen.pid for seen in ended.others} == {other_job.pid, login.pid}
    assert ended.clean_at is not None


def test_a_second_time_there_is_nothing_to_do(ours: Processes) -> None:
    ours.start(job="7001")
    end()
    again = end()
    assert (again.killed, again.left, again.others) == (0, (), ())


def test_another_user_with_the_same_job_id_is_not_touched(ours: Processes) -> None:
    stranger = ours.start(job="7001", uid=UID + 1)
    assert end().killed == 0
    assert lives(stranger)


def test_roots_processes_are_never_ended_by_their_environment(ours: Processes) -> None:
    daemon = ours.start(job="7001", uid=0)
    assert end(Job("7001", 0)).killed == 0
    assert end(Job("7001", None)).killed == 0
    assert lives(daemon)


def test_a_process_that_ignores_term_is_killed(ours: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "TERM_WAIT_S", 0.1)
    stubborn = ours.start(STUBBORN, job="7001")
    assert end().killed == 1
    assert stubborn.wait(timeout=10) == -signal.SIGKILL


def test_a_process_that_obeys_gets_term_and_not_kill(ours: Processes) -> None:
    obedient = ours.start(job="7001")
    end()
    assert obedient.wait(timeout=10) == -signal.SIGTERM


def test_a_stopped_process_ends(ours: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "TERM_WAIT_S", 0.1)
    stopped = ours.start(job="7001")
    stopped.send_signal(signal.SIGSTOP)
    assert end().left == ()
    assert not lives(stopped)


def test_what_is_forked_while_the_others_die_ends_too(ours: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "TERM_WAIT_S", 0.3)
    token = f"fleetctl-heir-{os.getpid()}"
    heir = {"HEIR": "trap '' TERM; while :; do sleep 60; done"}
    script = f"trap 'sh -c \"$HEIR\" {token} & exit' TERM; echo up; while :; do sleep 0.05; done"
    parent = ours.start(script, job="7001", more=heir)
    ended = end()
    assert ended.left == ()
    assert ended.killed >= 2
    assert parent.wait(timeout=10) in (
        0,
        128 + signal.SIGTERM,
    )  # or that of its sleep
    assert [pid for pid in descendants(token) if pid != parent.pid] == []


def test_a_process_without_the_id_in_its_environment_stays(ours: Processes) -> None:
    escaped = ours.start("exec env -i /bin/sh -c 'echo up; read never'", job="7001")
    ended = end()
    assert lives(escaped)
    assert ended.others is not None
    assert [seen.told for seen in ended.others] == [""]


def test_a_process_that_calls_itself_slurmstepd_is_not_spared(ours: Processes) -> None:
    liar = ours.start("printf slurmstepd > /proc/$$/comm; echo up; read never", job="7001")
    assert Path(f"/proc/{liar.pid}/comm").read_text() == "slurmstepd\n"
    assert end().killed == 1
    assert not lives(liar)


def test_a_zombie_counts_as_dead_and_is_no_other_process(ours: Processes) -> None:
    dead = ours.start("echo up", job="7002")
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    assert end().others == ()


def test_a_process_that_hangs_in_the_kernel_gets_its_kill_and_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hung, struck = SEEN._replace(state="D"), []

    def strike(
        found: list[Seen], job: Job, world: World, sent: dict[tuple[int, int], int], number: int, _: float
    ) -> None:
        struck.append(number)
        sent.update({(seen.pid, seen.started): number for seen in found})

    monkeypatch.setattr(ending, "look", lambda *args: (hung,))
    monkeypatch.setattr(ending, "_strike", strike)
    ended = end(within_s=1.0, world=here()._replace(place=""))
    assert struck == [signal.SIGTERM, signal.SIGKILL]
    assert ended == Ended(0, (hung,), (), None)


def test_one_look_that_finds_none_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    # A child that is born behind the reader of /proc is not in its list.
    looks, struck = iter([(), (SEEN,), (), ()]), []
    monkeypatch.setattr(ending, "look", lambda *args: next(looks))
    monkeypatch.setattr(ending, "_strike", lambda found, *args: struck.extend(found))
    assert end(world=here()._replace(place="")).left == ()
    assert struck == [SEEN]
    assert next(looks, None) is None


def test_a_wrong_start_is_another_process_and_gets_no_signal(ours: Processes) -> None:
    process = ours.start(job="7001")
    seen = see(process.pid, "/proc", UID, set())
    assert seen is not None
    handle = os.pidfd_open(process.pid)
    try:
        assert ending._send(handle, seen._replace(started=seen.started - 1), JOB, here(), signal.SIGKILL) is None
        assert ending._send(handle, seen, Job("7009", UID), here(), signal.SIGKILL) is None
        assert lives(process)
        assert ending._send(handle, seen, JOB, here(), signal.SIGKILL) is not None
    finally:
        os.close(handle)
    assert process.wait(timeout=10) == -signal.SIGKILL


def test_without_pidfds_nothing_is_killed_and_the_rest_is_named(
    ours: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    process = ours.start(job="7001")
    monkeypatch.setattr(os, "pidfd_open", refuse)
    ended = end(within_s=0.3)
    assert (ended.killed, [seen.pid for seen in ended.left], ended.clean_at) == (0, [process.pid], None)
    assert ended.others == ()  # it is the job's, and no other's
    assert lives(process)


def test_a_proc_that_is_not_ours_proves_nothing(ours: Processes, tmp_path: Path) -> None:
    process = ours.start(job="7001")
    assert look(JOB, str(tmp_path), "/sys/fs/cgroup") is None
    assert end(world=here()._replace(proc=str(tmp_path))) == Ended(0, (), None, None)
    assert end(world=here()._replace(proc=str(tmp_path / "none"))).others is None
    assert lives(process)


def test_this_process_and_those_above_it_are_spared() -> None:
    world = here()
    assert {os.getpid(), os.getppid()} <= world.spare
    assert spared(SEEN._replace(pid=os.getpid()), world)


@pytest.mark.parametrize("place", ["0::/system.slice/slurmd.service\n", "", None])
def test_elsewhere_than_in_slurmds_own_cgroup_an_environment_proves_nothing(ours: Processes, place: str | None) -> None:
    """As on a node where Slurm makes cgroups for jobs: what is in none of them is a daemon's, or a login's."""
    says_so = ours.start(job="7001")
    ended = end(world=here()._replace(place=place))
    assert lives(says_so)
    assert ended.others is not None
    assert [seen.pid for seen in ended.others] == [says_so.pid]  # so its files are not touched either


def test_the_shell_of_a_salloc_begun_from_a_login_lives(ours: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_table, "_LOGIN", re.compile(".*"))  # every process here is a login's
    shell = ours.start(job="7001")
    ended = end()
    assert lives(shell)
    assert ended.others is not None
    assert [(seen.pid, seen.role) for seen in ended.others] == [(shell.pid, "login")]


@pytest.mark.parametrize("context", ["epilog_slurmd", "prolog_slurmd"])
def test_a_script_that_slurm_runs_as_we_do_is_spared(ours: Processes, context: str) -> None:
    script = ours.start(job="7001", more={"SLURM_SCRIPT_CONTEXT": context})
    world = here()._replace(own_uid=UID)  # a Slurm that runs as an ordinary user
    assert end(world=world).killed == 0
    assert lives(script)
    assert end().killed == 1  # a job cannot hide from root behind that word
    assert not lives(script)


def test_a_process_found_by_its_cgroup_ends_whoever_it_is(ours: Processes, tmp_path: Path) -> None:
    group = tmp_path / "system.slice" / "slurmstepd.scope" / "job_7001" / "step_0" / "user"
    group.mkdir(parents=True)
    process = ours.start(uid=UID + 1)
    (group / "cgroup.procs").write_text(f"{process.pid}\n0\nnonsense\n")
    found = look(JOB, "/proc", str(tmp_path))
    assert found is not None
    assert [seen.pid for seen in found] == [process.pid]
    assert proof(found[0]._replace(group="7001"), JOB) == "cgroup"
    end(world=here()._replace(cgroup=str(tmp_path)))
    assert lives(process)  # its own /proc/PID/cgroup does not say so: a pid in a list is no proof


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (SEEN, "environment"),
        (SEEN._replace(group="7001", told="", uid=5), "cgroup"),
        (SEEN._replace(group="7002"), ""),  # the cgroup outranks what the environment says
        (SEEN._replace(group=None), ""),
        (SEEN._replace(role="login"), ""),
        (SEEN._replace(role="manager"), ""),
        (SEEN._replace(role="login", group="7001"), "cgroup"),  # sshd has put it there
        (SEEN._replace(told="7002"), ""),
        (SEEN._replace(told=""), ""),
        (SEEN._replace(told=None), ""),
        (SEEN._replace(uid=UID + 1), ""),
        (SEEN._replace(told="07001"), ""),
    ],
)
def test_the_proof_that_a_process_is_of_the_job(seen: Seen, expected: str) -> None:
    assert proof(seen, JOB) == expected


def test_root_is_proved_by_cgroup_only() -> None:
    assert proof(SEEN._replace(uid=0), Job("7001", 0)) == ""
    assert proof(SEEN._replace(uid=0, group="7001"), Job("7001", 0)) == "cgroup"


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (SEEN._replace(pid=1), True),
        (SEEN._replace(name="slurmstepd", uid=0), True),
        (SEEN._replace(name="slurmd", uid=0), True),
        (SEEN._replace(name="slurmd"), False),
        (SEEN._replace(role="script", uid=0), True),
        (SEEN._replace(role="script"), False),
        (SEEN, False),
    ],
)
def test_whom_no_epilog_touches(seen: Seen, expected: bool) -> None:
    assert spared(seen, World(frozenset())) is expected
