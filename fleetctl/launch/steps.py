"""Start the steps of one attempt and wait for them. They stay in our process group, so that what Slurm sends to the
batch script (TERM on cancel, time limit and preemption) reaches them too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from fleetctl import process
from fleetctl.clock import Clock
from fleetctl.errors import ProgramMissing
from fleetctl.launch.model import Step

_POLL_S = 0.2
_KILL_AFTER_S = 30.0  # slurm.conf.5, KillWait: what Slurm itself grants between TERM and KILL
_NOT_FOUND, _NOT_STARTED = 127, 126  # the shell's statuses for a command that does not exist, or cannot be started


def run_steps(
    steps: tuple[Step, ...],
    environments: tuple[Mapping[str, str], ...],
    output: Path,
    clock: Clock,
    say: Callable[[str], None],
) -> dict[str, int]:
    """Start all, each in its environment, wait for all, and return status by name, negative for a signal; the one that
    failed first comes first.

    The first that fails ends the others: a part of a training that waits for a dead part only burns GPUs.
    """
    children: dict[str, process.Child[bytes] | int] = {}
    for step, environment in zip(steps, environments, strict=True):
        children[step.name] = _start(step, environment, output, say)
    return _wait(children, clock)


def _start(
    step: Step, environment: Mapping[str, str], output: Path, say: Callable[[str], None]
) -> process.Child[bytes] | int:
    try:
        return process.start(step.argv, env=environment, log=output, session=False)
    except ProgramMissing as error:
        say(f"fleetctl: step {step.name}: {error.message}")
        return _NOT_FOUND
    except OSError as error:  # too many arguments, no memory, a full disk under the log
        say(f"fleetctl: step {step.name} could not be started: {error.strerror}")
        return _NOT_STARTED


def _wait(children: Mapping[str, process.Child[bytes] | int], clock: Clock) -> dict[str, int]:
    kill_at_s: float | None = None
    cause: dict[str, int] = {}
    while True:
        codes = {name: child if isinstance(child, int) else child.poll() for name, child in children.items()}
        running = [child for child in children.values() if not isinstance(child, int) and child.returncode is None]
        if not running:
            return cause | {name: code for name, code in codes.items() if code is not None}
        if kill_at_s is None and any(codes.values()):
            cause = {name: code for name, code in codes.items() if code}
            kill_at_s = clock.monotonic_s() + _KILL_AFTER_S
            for child in running:
                child.terminate()
        elif kill_at_s is not None and clock.monotonic_s() > kill_at_s:
            for child in running:
                child.kill()
        clock.sleep(_POLL_S)
