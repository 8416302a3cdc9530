"""The sandbox on real daemons: it runs jobs, its nodes die wholly, and nothing of it outlives `down`."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from fleetctl import process
from fleetctl.clock import SystemClock
from fleetctl.errors import SandboxError
from fleetctl.sandbox import cluster, procs, state
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.model import Partition, SandboxConfig
from fleetctl.sandbox.procs import Proc
from tests.integration.conftest import MakeSandbox

pytestmark = pytest.mark.slurm
CLOCK = SystemClock()
QUICK = (("SlurmdTimeout", "6"),)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may not mount")
# the ranks of a job: one in the script, one that fled into a session of its own, as a data loader may
BEATING = """#!/bin/sh
beat() { while :; do date +%s.%N >> "$1"; sleep 0.05; done; }
setsid sh -c "while :; do date +%s.%N >> $BEATS.fled; sleep 0.05; done" </dev/null >/dev/null 2>&1 &
beat "$BEATS.rank"
"""


def until(happened: Callable[[], object], *, within_s: float = 30) -> None:
    assert procs.wait_until(lambda: bool(happened()), CLOCK, within_s=within_s), "it did not happen in time"


def slurm(sandbox: Sandbox, *argv: str, timeout_s: float = 30) -> str:
    done = process.run(argv, timeout_s=timeout_s, env=sandbox.environment(os.environ))
    assert done.returncode == 0, done
    return done.stdout


def batch(sandbox: Sandbox, script: str, *options: str, **variables: str) -> int:
    env = {**sandbox.environment(os.environ), **variables}
    argv = ["sbatch", "--parsable", "--output=/dev/null", *options]
    done = process.run(argv, timeout_s=30, env=env, stdin=script)
    assert done.returncode == 0, done
    return int(done.stdout)


def slurm_state(sandbox: Sandbox, node: str) -> str:
    return next(row.slurm or "unknown" for row in sandbox.status().nodes if row.name == node)


def traces(directory: Path) -> list[str]:
    """Command lines of living processes that name the directory: what a sandbox must not leave behind."""
    found = []
    for stat in procs.every():
        try:
            line = Path(f"/proc/{stat.proc.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            environ = Path(f"/proc/{stat.proc.pid}/environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if stat.state not in "ZX" and (f"{directory}/" in line or f"SLURM_CONF={directory}/" in environ):
            found.append(f"{stat.proc.pid} {line}")
    return found


@dataclass(frozen=True)
class Beats:
    """Two ranks of one job on one node, each appending to its file all the time."""

    base: Path
    job_id: int

    def sizes(self) -> tuple[int, int]:
        return tuple(  # type: ignore[return-value]
            path.stat().st_size if path.exists() else 0
            for path in (self.base.with_suffix(".rank"), self.base.with_suffix(".fled"))
        )

    def both_write(self, *, within_s: float = 20) -> None:
        before = self.sizes()
        until(lambda: all(now > then for now, then in zip(self.sizes(), before, strict=True)), within_s=within_s)

    def both_silent(self) -> bool:
        before = self.sizes()
        CLOCK.sleep(0.4)  # eight beats
        return self.sizes() == before


@pytest.fixture
def beats(tmp_path: Path) -> Callable[[Sandbox, str], Beats]:
    def start(sandbox: Sandbox, node: str) -> Beats:
        base = tmp_path / f"beats-{node}"
        job_id = batch(sandbox, BEATING, f"--nodelist={node}", "--requeue", BEATS=str(base))
        begun = Beats(base, job_id)
        begun.both_write()
        return begun

    return start


def test_a_job_over_two_nodes_sees_its_gpus(sandbox: Sandbox) -> None:
    show = "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
    out = slurm(sandbox, "srun", "-N2", "-n2", "--gpus-per-node=8", "sh", "-c", show)
    lines = dict(line.split() for line in out.splitlines())
    assert len(lines) == 2
    assert set(lines) < {"node1", "node2", "node3", "node4"}
    assert set(lines.values()) == {"0,1,2,3,4,5,6,7"}


def test_two_jobs_share_a_node_and_its_gpus(sandbox: Sandbox) -> None:
    show = "sleep 1; echo $CUDA_VISIBLE_DEVICES"
    out = slurm(sandbox, "srun", "-N1", "-n2", "--gpus-per-task=3", "sh", "-c", show)
    used = [gpu for line in out.split() for gpu in line.split(",")]
    assert len(set(used)) == 6


@needs_root
def test_a_node_has_its_own_shared_memory_and_knows_the_others_by_name(sandbox: Sandbox) -> None:
    here = set(os.listdir("/dev/shm"))
    leave = "getent hosts node4 | cut -d' ' -f1; touch /dev/shm/$SLURM_JOB_ID.$SLURMD_NODENAME; sleep 0.5; ls /dev/shm"
    out = slurm(sandbox, "srun", "-N2", "-n2", "--label", "sh", "-c", leave)
    for rank in "01":
        mine = [line.partition(": ")[2] for line in out.splitlines() if line.startswith(f"{rank}:")]
        assert mine[0] == "127.0.0.1"
        assert len([name for name in mine[1:] if ".node" in name]) == 1, out
    assert not [name for name in set(os.listdir("/dev/shm")) - here if ".node" in name]


def test_status_while_all_is_well(sandbox: Sandbox) -> None:
    until(lambda: {row.slurm for row in sandbox.status().nodes} == {"IDLE"})
    status = sandbox.status()
    assert [row.slurmd for row in status.nodes] == ["running"] * 4
    assert status.dead == ()
    assert status.answers


def test_up_again_finds_the_same_sandbox_and_refuses_another(sandbox: Sandbox) -> None:
    before = state.load(sandbox.directory)
    said: list[str] = []
    again = cluster.up(SandboxConfig(nodes=4, gpus=8), sandbox.directory, CLOCK, said.append)
    assert again.slurm_conf == sandbox.slurm_conf
    assert state.load(sandbox.directory) == before
    assert said == [f"The sandbox in {sandbox.directory} is up already."]
    with pytest.raises(SandboxError, match="with other options") as caught:
        cluster.up(SandboxConfig(nodes=3), sandbox.directory, CLOCK)
    assert "down first" in (caught.value.remedy or "")
    assert state.load(sandbox.directory) == before


def test_down_leaves_no_process_and_only_logs(make_sandbox: MakeSandbox) -> None:
    made = make_sandbox(SandboxConfig(nodes=1, cpu_nodes=1))
    assert len(traces(made.directory)) >= 6  # munged, slurmctld, and unshare and slurmd of two nodes
    job = batch(made, "#!/bin/sh\nsleep 300\n", "--nodelist=cpu1")
    until(lambda: slurm(made, "squeue", "-h", "-o", "%T", "-j", str(job)).strip() == "RUNNING")
    made.node("cpu1").freeze()
    made.ctld.stop()
    made.down()
    assert traces(made.directory) == []
    assert {path.name for path in made.directory.iterdir()} == {"log", state.LOCK}
    with pytest.raises(SandboxError, match="no sandbox is up"):
        cluster.find(made.directory, CLOCK)
    assert not cluster.down(made.directory, CLOCK)


def test_node_kill_ends_every_process_of_the_node_and_start_brings_it_back(
    make_sandbox: MakeSandbox, beats: Callable[[Sandbox, str], Beats]
) -> None:
    made = make_sandbox(SandboxConfig(nodes=2))
    begun = beats(made, "node2")
    other = beats(made, "node1")
    members = made.node("node2").members()
    assert {"slurmd", "slurmstepd", "sh"} <= {stat.name for stat in members}
    made.node("node2").kill()
    assert not any(procs.alive(stat.proc) for stat in members)
    assert made.node("node2").members() == ()
    assert begun.both_silent()
    other.both_write()
    assert [row.slurmd for row in made.status().nodes] == ["running", "killed"]
    assert made.status().dead == ()  # it was asked for
    made.node("node2").kill()  # once more changes nothing
    slurm(made, "scancel", str(begun.job_id))
    made.node("node2").start()
    assert [row.slurmd for row in made.status().nodes] == ["running", "running"]
    until(lambda: slurm_state(made, "node2") == "IDLE")
    assert slurm(made, "srun", "-w", "node2", "--gpus=8", "echo", "back").strip() == "back"


def test_a_dead_node_goes_down_and_its_job_elsewhere(
    make_sandbox: MakeSandbox, beats: Callable[[Sandbox, str], Beats]
) -> None:
    made = make_sandbox(SandboxConfig(nodes=2, settings=QUICK))
    begun = beats(made, "node2")
    made.node("node2").kill()
    until(lambda: slurm_state(made, "node2").startswith("DOWN"))
    until(lambda: "Restarts=1 " in slurm(made, "scontrol", "-o", "show", "job", str(begun.job_id)))
    made.node("node2").start()
    assert slurm_state(made, "node2") in ("IDLE", "MIXED")


def test_freeze_stops_everything_and_wake_goes_on(
    make_sandbox: MakeSandbox, beats: Callable[[Sandbox, str], Beats]
) -> None:
    made = make_sandbox(SandboxConfig(nodes=1))
    begun = beats(made, "node1")
    made.node("node1").freeze()
    assert begun.both_silent()
    assert {stat.state for stat in made.node("node1").members()} == {"T"}
    assert made.status().nodes[0].slurmd == "frozen"
    with pytest.raises(SandboxError, match="frozen"):
        made.node("node1").heal()
    made.node("node1").wake()
    begun.both_write()
    assert made.status().nodes[0].slurmd == "running"


@needs_root
def test_freeze_and_kill_reach_into_containers(make_sandbox: MakeSandbox, tmp_path: Path) -> None:
    made = make_sandbox(SandboxConfig(nodes=1))
    beat = tmp_path / "beat"
    loop = f"while :; do date >> {beat}; sleep 0.05; done"
    batch(made, f"#!/bin/sh\nunshare --pid --fork --mount-proc sh -c '{loop}'\n")
    until(beat.exists)
    made.node("node1").freeze()
    size = beat.stat().st_size
    CLOCK.sleep(0.4)
    assert beat.stat().st_size == size
    made.node("node1").wake()
    until(lambda: beat.stat().st_size > size)
    made.node("node1").kill()
    size = beat.stat().st_size
    CLOCK.sleep(0.4)
    assert beat.stat().st_size == size


def test_a_cut_node_is_lost_to_slurm_while_its_ranks_write(
    make_sandbox: MakeSandbox, beats: Callable[[Sandbox, str], Beats]
) -> None:
    made = make_sandbox(SandboxConfig(nodes=2, settings=QUICK))
    begun = beats(made, "node2")
    made.node("node2").cut()
    assert {s.name for s in made.node("node2").members() if s.state == "T"} == {"slurmd", "slurmstepd"}
    assert made.status().nodes[1].slurmd == "cut"
    until(lambda: "NOT_RESPONDING" in slurm_state(made, "node2"))
    begun.both_write()
    until(lambda: slurm_state(made, "node2").startswith("DOWN"))
    begun.both_write()  # Slurm has given the job up, yet it writes: that is why the sandbox can cut
    made.node("node2").heal()
    until(lambda: slurm_state(made, "node2") == "IDLE")


def test_broken_nodes_are_only_mended_by_their_own_remedy(make_sandbox: MakeSandbox) -> None:
    made = make_sandbox(SandboxConfig(nodes=1, gpus=0))
    made.node("node1").kill()
    for verb in ("freeze", "wake", "cut", "heal"):
        with pytest.raises(SandboxError, match="not running") as caught:
            getattr(made.node("node1"), verb)()
        assert caught.value.remedy == "start node1 first"
    with pytest.raises(Exception, match="no node node2: this sandbox has node1"):
        made.node("node2")


def test_a_slurmd_that_dies_by_itself_is_reported(make_sandbox: MakeSandbox) -> None:
    made = make_sandbox(SandboxConfig(nodes=2, gpus=0))
    slurmd = next(stat for stat in made.node("node2").members() if stat.name == "slurmd")
    procs.send(slurmd.proc, signal.SIGKILL)
    until(lambda: made.status().dead == ("node2",))
    assert made.status().nodes[1].slurmd == "died"
    made.node("node2").start()
    assert made.status().dead == ()


def test_a_node_whose_unshare_is_killed_by_somebody_dies_wholly(
    make_sandbox: MakeSandbox, beats: Callable[[Sandbox, str], Beats]
) -> None:
    made = make_sandbox(SandboxConfig(nodes=1))
    begun = beats(made, "node1")
    members = made.node("node1").members()
    found = state.load(made.directory)
    assert found is not None
    procs.send(found.processes["node1"], signal.SIGKILL)
    until(lambda: not any(procs.alive(stat.proc) for stat in members))
    assert begun.both_silent()
    assert made.status().dead == ("node1",)


def test_a_hung_slurmctld_answers_nobody_until_it_goes_on(make_sandbox: MakeSandbox) -> None:
    made = make_sandbox(SandboxConfig(nodes=1, settings=(("MessageTimeout", "2"),)))
    made.ctld.stop()
    assert not made.status().answers
    assert made.status().nodes[0].slurm is None
    assert made.status().dead == ()
    made.ctld.cont()
    until(lambda: made.status().answers)


def test_a_killed_slurmctld_comes_back_with_its_jobs(
    make_sandbox: MakeSandbox, beats: Callable[[Sandbox, str], Beats]
) -> None:
    made = make_sandbox(SandboxConfig(nodes=1))
    begun = beats(made, "node1")
    saved = made.directory / "ctld" / "job_state"
    batch(made, "#!/bin/sh\n", "--hold")  # slurmctld saves every few seconds what changed: only that survives SIGKILL
    submitted_s = CLOCK.now().timestamp()
    until(lambda: saved.exists() and saved.stat().st_mtime > submitted_s)
    made.ctld.kill()
    assert made.status().dead == ("slurmctld",)
    with pytest.raises(SandboxError, match="lost its slurmctld") as caught:
        cluster.up(made.config, made.directory, CLOCK)
    assert caught.value.remedy == "take it down first"
    begun.both_write()
    made.ctld.start()
    assert slurm(made, "squeue", "-h", "-o", "%T", "-j", str(begun.job_id)).strip() == "RUNNING"
    begun.both_write()


def test_two_sandboxes_side_by_side_know_nothing_of_each_other(make_sandbox: MakeSandbox) -> None:
    one, two = make_sandbox(SandboxConfig(nodes=1, gpus=2)), make_sandbox(SandboxConfig(nodes=2, gpus=1))
    job = batch(one, "#!/bin/sh\nsleep 60\n")
    assert slurm(one, "squeue", "-h", "-o", "%i").split() == [str(job)]
    assert slurm(two, "squeue", "-h").split() == []
    credential = process.run(["munge", "-n", "-S", str(one.directory / "run/munge.sock")], timeout_s=10).stdout
    read = process.run(["unmunge", "-S", str(two.directory / "run/munge.sock")], timeout_s=10, stdin=credential)
    assert read.returncode != 0
    one.down()
    assert slurm(two, "srun", "-N2", "-n2", "echo", "on").split() == ["on", "on"]


def test_settings_and_partitions_arrive(make_sandbox: MakeSandbox) -> None:
    config = SandboxConfig(
        nodes=2,
        settings=(("SlurmdTimeout", "77"), ("JobRequeue", "0")),
        partitions=(Partition("debug", (("Nodes", "node2"), ("MaxTime", "7"))),),
    )
    made = make_sandbox(config)
    shown = slurm(made, "scontrol", "show", "config")
    assert re.search(r"^SlurmdTimeout\s+= 77 sec$", shown, re.MULTILINE)
    assert re.search(r"^JobRequeue\s+= 0$", shown, re.MULTILINE)
    debug = slurm(made, "scontrol", "-o", "show", "partition", "debug")
    assert " Nodes=node2 " in debug
    assert "MaxTime=00:07:00" in debug
    assert "Default=YES" in slurm(made, "scontrol", "-o", "show", "partition", "main")


@needs_root
def test_a_private_tmp_is_private() -> None:
    directory = Path(tempfile.mkdtemp(prefix="fc-", dir="/var/tmp"))
    try:
        made = cluster.up(SandboxConfig(nodes=1, private_tmp=True), directory, CLOCK)
        assert slurm(made, "srun", "--chdir=/", "sh", "-c", "touch /tmp/only-here; ls /tmp").split() == ["only-here"]
        assert not Path("/tmp/only-here").exists()
    finally:
        cluster.down(directory, CLOCK)
        process.run(["rm", "-r", str(directory)], timeout_s=10)


def test_sandboxes_with_accounting_may_start_at_once(make_sandbox: MakeSandbox) -> None:
    """The makers of their databases must not meet in /tmp, where each removes what it finds."""
    with ThreadPoolExecutor(3) as pool:
        started = list(pool.map(lambda _: make_sandbox(SandboxConfig(nodes=1, accounting=True)), range(3)))
    assert all(made.status().answers for made in started)


def test_a_finished_job_is_in_the_accounts_with_its_comment(make_sandbox: MakeSandbox) -> None:
    made = make_sandbox(SandboxConfig(nodes=1, accounting=True))
    job = batch(made, "#!/bin/sh\ntrue\n", "--wait", "--gres=gpu:2", "--comment=the run")
    row = ["sacct", "-X", "-n", "-P", "-j", str(job), "-o", "State,Comment,AllocTRES,Account"]
    until(lambda: slurm(made, *row).startswith("COMPLETED|"))
    _, comment, tres, account = slurm(made, *row).strip().split("|")
    assert comment == "the run"
    assert "gres/gpu=2" in tres.split(",")
    assert account == "sandbox"
    assert "Administ" in slurm(made, "sacctmgr", "-n", "show", "user")
    made.dbd.kill()
    assert made.status().dead == ("slurmdbd",)
    made.dbd.start()
    assert slurm(made, *row).startswith("COMPLETED|")
    made.down()
    assert traces(made.directory) == []


@pytest.fixture
def stranger() -> Iterator[Proc]:
    """A process that has nothing to do with any sandbox."""
    child = process.start(["sleep", "300"])
    stat = procs.stat_of(child.pid)
    assert stat is not None
    yield stat.proc
    child.kill()
    child.wait()


def test_a_reused_pid_is_not_killed(make_sandbox: MakeSandbox, stranger: Proc) -> None:
    made = make_sandbox(SandboxConfig(nodes=1, gpus=0))
    made.node("node1").kill()
    made.ctld.kill()
    found = state.load(made.directory)
    assert found is not None
    for name in ("node1", "slurmctld"):
        reused = Proc(stranger.pid, found.processes[name].start_ticks)
        assert reused != stranger
        found = found.started(name, reused)
    state.save(made.directory, found)
    assert cluster.down(made.directory, CLOCK)
    assert procs.alive(stranger)
    assert traces(made.directory) == []
