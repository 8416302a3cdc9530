"""`up` killed in the middle, `up` that cannot succeed, and the sandbox of an ordinary user."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import fleetctl
from fleetctl import process
from fleetctl.clock import SystemClock
from fleetctl.errors import ProgramMissing, SandboxError
from fleetctl.sandbox import cluster, procs, state
from fleetctl.sandbox.model import SandboxConfig
from tests.integration.conftest import MakeSandbox, short_dir
from tests.integration.test_sandbox import slurm, traces, until

pytestmark = pytest.mark.slurm
CLOCK = SystemClock()
UP = """
import sys
from pathlib import Path
from fleetctl.clock import SystemClock
from fleetctl.sandbox import cluster
from fleetctl.sandbox.model import SandboxConfig
cluster.up(SandboxConfig(nodes=4, accounting=sys.argv[2] == "accounting"), Path(sys.argv[1]), SystemClock())
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    made = short_dir()
    yield made
    cluster.down(made, CLOCK)
    shutil.rmtree(made)


def recorded(directory: Path) -> int:
    found = state.load(directory)
    return 0 if found is None else len(found.processes)


def die_after(count: int, directory: Path, kind: str = "plain") -> None:
    """An `up` that is killed once it has started `count` processes."""
    child = process.start([sys.executable, "-c", UP, str(directory), kind])
    until(lambda: recorded(directory) >= count or child.poll() is not None)
    child.kill()
    assert child.wait() == -signal.SIGKILL, "up was quicker than the test"


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_down_cleans_up_after_an_up_that_was_killed(directory: Path, count: int) -> None:
    die_after(count, directory)
    if count > 1:  # the last one is written down before it may run, and ends by itself when nobody lets it
        assert traces(directory)
    with pytest.raises(SandboxError, match="not taken down cleanly"):
        cluster.find(directory, CLOCK)
    assert cluster.down(directory, CLOCK)
    until(
        lambda: traces(directory) == []
    )  # one that was forked and not yet written down sees its gate closed, and ends


def test_the_next_up_cleans_up_after_an_up_that_was_killed(directory: Path) -> None:
    die_after(3, directory, "accounting")  # munged, mariadbd, slurmdbd
    said: list[str] = []
    made = cluster.up(SandboxConfig(nodes=1), directory, CLOCK, said.append)
    assert said[0] == f"Cleaning up a sandbox in {directory} that was not taken down."
    assert slurm(made, "srun", "echo", "works").strip() == "works"
    assert not any("mariadbd" in line or "slurmdbd" in line for line in traces(directory))


def test_after_a_reboot_up_starts_afresh_and_kills_nobody(make_sandbox: MakeSandbox) -> None:
    made = make_sandbox(SandboxConfig(nodes=1))
    found = state.load(made.directory)
    assert found is not None
    made.down()
    us = procs.stat_of(os.getpid())
    assert us is not None
    for folder in ("etc", "spool"):
        made.directory.joinpath(folder).mkdir()
    stale = found  # the state as a power failure leaves it, pids reused by us
    for name in found.processes:
        stale = stale.started(name, us.proc)
    state.save(made.directory, state.State("of an earlier boot", state.UP, found.config, found.site, stale.processes))
    again = cluster.up(SandboxConfig(nodes=1), made.directory, CLOCK)
    assert again.status().dead == ()


def test_an_up_that_fails_says_why_and_leaves_nothing(directory: Path) -> None:
    config = SandboxConfig(nodes=1, settings=(("SelectType", "select/nonsense"),))
    with pytest.raises(SandboxError, match=r"slurmctld died while starting; .*log/slurmctld\.\w+ ends: .*nonsense"):
        cluster.up(config, directory, CLOCK)
    assert traces(directory) == []
    assert state.load(directory) is None
    assert cluster.up(SandboxConfig(nodes=1), directory, CLOCK).status().dead == ()


def test_a_node_that_cannot_start_is_named(directory: Path) -> None:
    config = SandboxConfig(nodes=1, settings=(("SlurmdSpoolDir", "/proc/nowhere"),))
    with pytest.raises(SandboxError, match=r"node1: slurmd died while starting; .*node1\.\w+ ends: "):
        cluster.up(config, directory, CLOCK)
    assert traces(directory) == []


def test_a_second_command_waits_for_the_first(directory: Path) -> None:
    child = process.start([sys.executable, "-c", UP, str(directory), "plain"])
    until(lambda: recorded(directory) >= 1)
    said: list[str] = []
    made = cluster.up(SandboxConfig(nodes=4), directory, CLOCK, said.append)
    assert child.wait() == 0
    assert said == [f"The sandbox in {directory} is up already."]
    assert made.status().dead == ()


ORDINARY = """
import json, os, sys
from pathlib import Path
from fleetctl import process
from fleetctl.clock import SystemClock
from fleetctl.sandbox import cluster, procs
from fleetctl.sandbox.model import SandboxConfig
clock, home = SystemClock(), Path(os.environ["HOME"])
made = cluster.up(SandboxConfig(nodes=2), home / "s", clock)
env = made.environment(os.environ)
show = "echo $(id -un) $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
job = process.run(["srun", "-N2", "-n2", "--gpus-per-node=8", "sh", "-c", show], timeout_s=30, env=env, cwd=home)
beat = home / "beat"
script = f"#!/bin/sh\\nsetsid sh -c 'while :; do date >> {beat}; sleep 0.05; done' & sleep 300\\n"
process.run(["sbatch", "-w", "node2", "-o", "/dev/null"], timeout_s=30, env=env, cwd=home, stdin=script)
begun = procs.wait_until(beat.exists, clock, within_s=20)
def silent():
    before = beat.stat().st_size
    clock.sleep(0.4)
    return beat.stat().st_size == before
node = made.node("node2")
node.freeze(); frozen = silent()
node.wake(); woken = not silent()
node.cut(); cut = not silent()
node.heal()
members = node.members()
node.kill(); killed = silent() and not any(procs.alive(stat.proc) for stat in members)
node.start()
states = [row.slurm for row in made.status().nodes]
made.down()
print(json.dumps({"job": job.stdout + job.stderr, "begun": begun, "frozen": frozen, "woken": woken, "cut": cut,
    "killed": killed, "states": states, "names": sorted({stat.name for stat in members})}))
"""


def python_for(user: pwd.struct_passwd) -> str:
    """An interpreter of our version that the user may run: ours may lie in a closed home."""
    for candidate in (sys.executable, f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"):
        try:
            if process.run([*as_user(user), candidate, "-c", ""], timeout_s=10, cwd=Path("/")).returncode == 0:
                return candidate
        except ProgramMissing:
            continue
    pytest.fail(f"no Python {sys.version_info[:2]} that {user.pw_name} can run; install python3 for everybody")


def as_user(user: pwd.struct_passwd) -> list[str]:
    if os.geteuid() == user.pw_uid:
        return []
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def test_an_ordinary_user_has_a_sandbox_too(directory: Path) -> None:
    user = pwd.getpwnam("games") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    library = directory / "lib"  # the checkout and the environment may lie in a home that is closed to the user
    for package in (fleetctl, msgspec):
        source = Path(package.__file__ or "").parent
        shutil.copytree(source, library / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    home = directory / "h"
    home.mkdir()
    os.chown(home, user.pw_uid, user.pw_gid)
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(library), "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [*as_user(user), python_for(user), "-c", ORDINARY]
    done = process.run(argv, timeout_s=60, env=env, cwd=home)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    gpus = "0,1,2,3,4,5,6,7"
    assert sorted(seen["job"].splitlines()) == [f"{user.pw_name} node1 {gpus}", f"{user.pw_name} node2 {gpus}"]
    assert {key: seen[key] for key in ("begun", "frozen", "woken", "cut", "killed")} == {
        "begun": True,
        "frozen": True,
        "woken": True,
        "cut": True,
        "killed": True,
    }
    assert {"slurmd", "slurmstepd", "sleep"} <= set(seen["names"])
    assert all(word in ("IDLE", "MIXED") for word in seen["states"])
    assert traces(home) == []
