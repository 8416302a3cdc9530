"""What integration and fault tests share: the real command line, and Slurm's own commands as the judge."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleetctl.rundir.attempts import Attempts
from fleetctl.rundir.model import attempt_number

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
_LIMIT_S = 120.0


class Cli:
    """`fleetctl` as its user starts it, on one cluster and one run root."""

    def __init__(self, environ: Mapping[str, str], runs: Path) -> None:
        path = f"{BIN}:{environ.get('PATH', '')}"  # the jobs' python3 is then the one that has NumPy
        self.environ = {**environ, "FLEETCTL_RUNS": str(runs), "PATH": path}
        self.runs = runs

    def __call__(self, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "fleetctl"), *args],
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )

    def start(self, *args: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(BIN / "fleetctl"), *args],
            env={**self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_as_a_terminal_does,
        )

    def json(self, *args: str, **environ: str) -> Any:
        done = self(*args, "--json", **environ)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def slurm(self, *argv: str) -> str:
        return subprocess.run(
            argv, env=self.environ, capture_output=True, text=True, timeout=_LIMIT_S, check=True
        ).stdout

    def jobs(self) -> list[str]:
        """Ids and names of all jobs that the controller remembers, by Slurm's own word."""
        return self.slurm("squeue", "--noheader", "--states=all", "--format=%F %j").splitlines()

    def shadow(self, folder: Path, name: str, text: str) -> str:
        """A PATH on which the program `name` is this shell text; `$REAL` is the real one."""
        folder.mkdir(exist_ok=True)
        real = next(str(Path(part, name)) for part in os.environ["PATH"].split(":") if Path(part, name).exists())
        (folder / name).write_text(f"#!/bin/bash\nREAL={real}\n{text}\n")
        (folder / name).chmod(0o755)
        return f"{folder}:{self.environ['PATH']}"


def _as_a_terminal_does() -> None:
    """A shell's background job ignores SIGINT, one of nohup SIGHUP, and so does all that they start."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def wait_until(probe: Callable[[], object], what: str, within_s: float = 60.0) -> None:
    """Poll a real probe until it is true."""
    deadline = time.monotonic() + within_s
    while not probe():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.1)


def write_spec(folder: Path, text: str, name: str = "train.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def committed(run_dir: Path, attempt: str) -> list[int]:
    """The training steps whose checkpoints an attempt of a run has committed."""
    number = attempt_number(attempt)
    assert number is not None, attempt
    return [save.training_step for save in Attempts(run_dir / "attempts").saves(number) if save.committed]


def processes_with(*variables: str) -> list[int]:
    """The processes of this machine that have all of these in their environment, each as NAME=VALUE."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            words = path.read_text(errors="replace").split("\0")
        except OSError:
            continue
        if {*variables} <= {*words}:
            found.append(int(path.parent.name))
    return found


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of its own at `place`, of so many bytes in mount's words (tmpfs; as root)."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)
