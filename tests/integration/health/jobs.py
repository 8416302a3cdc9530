"""Real processes that stand for a user's jobs; each is ended by its own pid."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

# Nobody's here, and another one in each process of pytest-xdist: a user's other processes are seen on the whole machine
UID = 4242 + 10 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
WAIT = "echo up; read never"  # its standard input is a pipe that stays open
STUBBORN = "trap '' TERM; echo up; while :; do read never || :; done"


class Processes:
    """Starts processes, and ends and buries all of them when the block is left."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def start(
        self, script: str = WAIT, *, job: str | None = None, uid: int = UID, more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """A shell that runs the script; returns once it has said that it is up."""
        environment = {} if job is None else {"SLURM_JOB_ID": job}
        process = subprocess.Popen(
            ["/bin/sh", "-c", script],
            env={**environment, **(more or {})},
            user=uid,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
        )
        self._stack.callback(_end, process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with process:  # closes its pipes and waits
        pass


@contextmanager
def processes() -> Iterator[Processes]:
    with ExitStack() as stack:
        yield Processes(stack)


def lives(process: subprocess.Popen[bytes]) -> bool:
    """Whether it still runs."""
    return process.poll() is None


def descendants(token: str) -> list[int]:
    """The living processes whose command line holds the token."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if token.encode() in line:
                found.append(int(name))
    return found
