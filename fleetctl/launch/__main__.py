"""`python -I -m fleetctl.launch`: what the batch script execs."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

from fleetctl.clock import SystemClock
from fleetctl.errors import FleetctlError
from fleetctl.launch.code import code_state
from fleetctl.launch.lead import World
from fleetctl.launch.model import identity, parse_order
from fleetctl.launch.run import launch
from fleetctl.slurm.commands import Limits
from fleetctl.slurm.connect import connect

_QUERY_S = 15.0  # while Slurm is asked, nobody looks after nodes and time; an answer normally takes milliseconds


def main() -> int:
    """The exit status of the batch script."""
    told: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        """Slurm tells the whole process group; the steps end by themselves, and we stay to write it down."""
        told.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, note)
    clock, say = SystemClock(), _say
    try:
        order, job = parse_order(sys.argv[1:]), identity(os.environ)
    except FleetctlError as error:
        return _fail(error, say)
    if order.take_over is not None:  # our output goes to the srun of a host that is dead
        say = partial(_append, Path(order.run_dir) / "logs" / f"take-over-{job.job_id}.log")
    world = World(
        clock=clock,
        environ=dict(os.environ),
        argv=tuple(sys.argv[1:]),
        slurm=connect(os.environ, clock, limits=Limits(query_s=_QUERY_S)),
        code=lambda: code_state(Path.cwd(), os.environ),
        told_to_end=lambda: any(number != signal.SIGUSR1 for number in told),
        notices=lambda: told.count(signal.SIGUSR1),
        say=say,
    )
    try:
        return launch(order, job, world)
    except FleetctlError as error:
        return _fail(error, say)


def _fail(error: FleetctlError, say: Callable[[str], None]) -> int:
    say(f"fleetctl: {error.message}" + (f" ({error.remedy})" if error.remedy else ""))
    return error.exit_code


def _append(path: Path, text: str) -> None:
    with contextlib.suppress(OSError), path.open("a") as file:
        file.write(text + "\n")


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk under Slurm's log
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
