"""A real torch training whose newest checkpoints are damaged: it goes on from the newest whole one, and says why."""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetctl.sandbox.cluster import Sandbox
from tests.support import ROOT, Cli, processes_with, wait_until, write_spec

pytestmark = pytest.mark.slurm

PROGRAM = Path(__file__).parent / "train_dcp.py"
LIMIT_S = 120


@pytest.fixture
def cli(sandbox: Sandbox, real_python: Path, tmp_path: Path) -> Cli:
    cli = Cli(sandbox.environment(os.environ), tmp_path / "runs")
    cli.environ["PATH"] = f"{real_python.parent}:{cli.environ['PATH']}"
    return cli


@pytest.fixture(scope="module")
def undisturbed(real_python: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the parameters of a training that nothing happens to, by torchrun alone."""
    argv = [str(real_python.parent / "torchrun"), "--standalone", "--nproc-per-node=2", str(PROGRAM)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    folder = tmp_path_factory.mktemp("undisturbed")
    done = subprocess.run([*argv, str(folder)], env=environ, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return digest(done.stdout)


def digest(output: str) -> str:
    (found,) = re.findall(r"parameters sha256 ([0-9a-f]{64})", output)
    return str(found)


def cut_a_shard(step: Path) -> None:
    shard = max(step.glob("*.distcp"))
    os.truncate(shard, shard.stat().st_size // 2)


def remove_the_metadata(step: Path) -> None:
    (step / ".metadata").unlink()


def flip_a_bit_in_a_tensor(step: Path) -> None:
    """As memory or a disk does it: no time changes."""
    shard = max(step.glob("*.distcp"), key=lambda path: path.stat().st_size)
    raw, times = bytearray(shard.read_bytes()), shard.stat()
    header = raw.rfind(b"PK\x03\x04", 0, raw.index(b"/data/0"))
    name_bytes, extra_bytes = struct.unpack_from("<HH", raw, header + 26)  # APPNOTE.TXT 4.3.7
    raw[header + 30 + name_bytes + extra_bytes + 5] ^= 4
    shard.write_bytes(raw)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))


def submit(cli: Cli, folder: Path) -> Path:
    hold, checkpoints = folder / "hold", folder / "checkpoints"
    hold.touch()
    spec = {
        "name": "dcp",
        "resources": {"gpus_per_node": "2", "cpus_per_task": "1", "time": "10m"},
        "launch": "torchrun",
        "env": {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        "checkpoint": {"dir": str(checkpoints), "format": "torch_dcp", "verify": "content"},
        "command": [str(PROGRAM), str(checkpoints), "--wait", "35", "--hold", str(hold)],
    }
    return cli.runs / str(cli.json("submit", str(write_spec(folder, json.dumps(spec))))["run_id"])


@pytest.mark.parametrize("tear", [cut_a_shard, remove_the_metadata])
def test_it_resumes_from_the_third_and_says_why_not_from_the_newer_two(
    cli: Cli, tmp_path: Path, undisturbed: str, tear: Callable[[Path], None]
) -> None:
    run = submit(cli, tmp_path)
    checkpoints = tmp_path / "checkpoints"
    wait_until(lambda: len(list(tmp_path.glob("hold.reached.*"))) == 2, "both ranks at step 35", LIMIT_S)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step_10", "step_20", "step_30"]
    tear(checkpoints / "step_30")
    flip_a_bit_in_a_tensor(checkpoints / "step_20")
    asked = cli.json("ckpt", "resolve", run.name)
    assert asked["path"] == str(checkpoints / "step_10")
    os.kill(processes_with(f"FLEETCTL_RUN_ID={run.name}", "RANK=1")[0], signal.SIGKILL)
    (tmp_path / "hold").unlink()
    waited = cli("wait", run.name, "--json", "--timeout", "110")
    output = (run / "attempts" / "1.1" / "output.log").read_text()
    assert json.loads(waited.stdout)["state"] == "completed", output

    assert f"loaded step 10 from {checkpoints}/step_10" in output
    resume = json.loads((run / "attempts" / "1.1" / "resume.json").read_text())
    assert (resume["training_step"], resume["format"], resume["level"]) == (10, "torch_dcp", "content")
    torn, flipped = resume["passed_over"]
    if tear is cut_a_shard:
        assert re.fullmatch(r"step_30: corrupt: __[01]_0\.distcp has \d+ bytes, not \d+", torn)
    else:
        assert torn == "step_30: incomplete: .metadata is missing"
    assert re.match(r"step_20: corrupt: __[01]_0\.distcp.* has another content than was written", flipped), flipped
    assert [one["name"] for one in asked["passed_over"]] == ["step_30", "step_20"]
    said = [one["text"] for one in cli.json("show", run.name)["timeline"]]
    assert [f"  not from {torn}", f"  not from {flipped}"] == [text for text in said if text.startswith("  not")]
    log = "".join(path.read_text() for path in (run / "logs").glob("slurm-*"))
    assert f"fleetctl: not from {torn}\nfleetctl: not from {flipped}\n" in log
    assert digest(output) == undisturbed
