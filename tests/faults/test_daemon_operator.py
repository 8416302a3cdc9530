"""The cluster's daemon, a service account with Slurm's Operator level, and a run of another user that it saves."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.model import SandboxConfig
from tests.integration.conftest import MakeSandbox, short_dir
from tests.integration.test_sandbox_crash import as_user
from tests.support import EXAMPLES, ROOT, wait_until, write_spec

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two other users")]

OWNER, SERVICE = "games", "daemon"  # accounts that Debian always has
BEGIN_WAIT_S = 90
SETTINGS = (("SlurmdTimeout", "10"), ("AuthInfo", f"cred_expire={BEGIN_WAIT_S - 1}"))
SPEC = """\
name: theirs
resources: {{nodes: 2, gpus_per_node: 8, tasks_per_node: 2, cpus_per_task: 1, time: 10m}}
checkpoint: {{dir: {home}/checkpoints, format: own, interval: 1s}}
workdir: {workdir}
command: exec {python} train_numpy.py --steps 260 --step-time-ms 50
"""


def python_for_all() -> str:
    """An interpreter of our version that everybody may run."""
    ours = Path(sys.executable).resolve()
    if all(folder.stat().st_mode & 0o001 for folder in ours.parents):
        return str(ours)
    return f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"


class Account:
    """A user with a home, and with an installation that it can run: ours may lie in a closed home."""

    def __init__(self, name: str, folder: Path, own: Sandbox, words: Path) -> None:
        self.user, self.home = pwd.getpwnam(name), folder / name
        self.home.mkdir()
        os.chown(self.home, self.user.pw_uid, self.user.pw_gid)
        path = f"{folder}/venv/bin:/usr/bin:/bin"
        environ = {"HOME": str(self.home), "PATH": path, "FLEETCTL_WORDS": str(words)}
        self.environ = own.environment(environ)

    def argv(self, *args: str) -> list[str]:
        return [*as_user(self.user), "fleetctl", *args]

    def json(self, *args: str) -> Any:
        argv = self.argv(*args, "--json")
        done = subprocess.run(argv, env=self.environ, capture_output=True, text=True, cwd="/", timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Open to other users, as pytest's own is not, with an environment that sees what ours sees."""
    made = short_dir()
    subprocess.run([python_for_all(), "-m", "venv", "--without-pip", str(made / "venv")], check=True)
    (packages,) = (made / "venv" / "lib").glob("python3.*/site-packages")
    (packages / "ours.pth").write_text("\n".join([str(ROOT), *(path for path in sys.path if "site-packages" in path)]))
    script = f"#!{made}/venv/bin/python3 -I\nfrom fleetctl.cli.entry import main\nmain()\n"
    (made / "venv" / "bin" / "fleetctl").write_text(script)
    (made / "venv" / "bin" / "fleetctl").chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_the_clusters_daemon_brings_another_users_run_back_and_writes_nothing_of_theirs(
    make_sandbox: MakeSandbox, folder: Path
) -> None:
    own = make_sandbox(SandboxConfig(nodes=3, settings=SETTINGS, accounting=True))
    words = folder / "words"
    words.mkdir(mode=0o755)
    os.chown(words, pwd.getpwnam(SERVICE).pw_uid, -1)
    owner, service = Account(OWNER, folder, own, words), Account(SERVICE, folder, own, words)
    level = ["sacctmgr", "-i", "add", "user", SERVICE, "account=sandbox", "adminlevel=Operator"]
    subprocess.run(level, env=own.environment(os.environ), capture_output=True, check=True)
    text = SPEC.format(home=owner.home, workdir=EXAMPLES, python=f"{folder}/venv/bin/python3")
    run_id = owner.json("submit", str(write_spec(owner.home, text)))["run_id"]
    wait_until(lambda: (owner.json("show", run_id)["training_step"] or 0) > 60, "it trains")

    log = folder / "daemon.log"
    with log.open("ab") as out:
        argv = service.argv("daemon", "run", "--operator", "--act", "--every", "2s")
        daemon = subprocess.Popen(argv, env=service.environ, stdout=out, stderr=out, cwd="/")
    try:
        wait_until(lambda: "1 run in" in log.read_text(), "it sees the run")
        assert "with Slurm's level Operator" in log.read_text()
        own.node("node2").kill()
        wait_until(lambda: "exclude node2" in log.read_text(), f"it acts: {log.read_text()}", 60)
        acted = time.monotonic()
        wait_until(lambda: owner.json("show", run_id)["attempt"] == "2.0", "it starts again", BEGIN_WAIT_S)
        assert time.monotonic() - acted < BEGIN_WAIT_S - 30, "sooner than Slurm alone"
        wait_until(lambda: owner.json("show", run_id)["state"] == "completed", "its end", 90)
    finally:
        daemon.terminate()
        assert daemon.wait(timeout=30) == 0, log.read_text()
    told = service.json("daemon", "explain", run_id, "--operator")
    assert [(one["deed"], one["outcome"]) for one in told["actions"]] == [("exclude", "done"), ("start_now", "done")]
    theirs = [path for path in owner.home.rglob("*") if path.lstat().st_uid != owner.user.pw_uid]
    assert theirs == [owner.home / "train.yaml"], "which this test wrote"
