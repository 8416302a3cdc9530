"""Start the steps of one attempt and watch over them. They stay in our process group, so that what Slurm sends to the
batch script (TERM on cancel, time limit and preemption) reaches them too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fleetctl import process
from fleetctl.clock import Clock
from fleetctl.errors import ProgramMissing
from fleetctl.launch.model import Step

_KILL_AFTER_S = 30.0  # slurm.conf.5, KillWait: what Slurm itself grants between TERM and KILL
_NOT_FOUND, _NOT_STARTED = 127, 126  # the shell's statuses for a command that does not exist, or cannot be started


class Steps:
    """The running steps of one attempt. The first that fails ends the others: a part of a training that waits for a
    dead part only burns GPUs."""

    def __init__(self, children: Mapping[str, process.Child[bytes] | int], clock: Clock) -> None:
        self._children = children
        self._clock = clock
        self._kill_at_s: float | None = None
        self._cause: dict[str, int] = {}

    def poll(self) -> dict[str, int] | None:
        """None while one runs; then the status by name, negative for a signal, the one that failed first in front."""
        codes = {name: child if isinstance(child, int) else child.poll() for name, child in self._children.items()}
        if all(code is not None for code in codes.values()):
            return self._cause | {name: code for name, code in codes.items() if code is not None}
        if not self._cause and any(codes.values()):
            self._cause = {name: code for name, code in codes.items() if code}
            self.end(_KILL_AFTER_S)
        if self._kill_at_s is not None and self._clock.monotonic_s() >= self._kill_at_s:
            for child in self._running():
                child.kill()
        return None

    def end(self, grace_s: float) -> None:
        """Ask all to end (TERM), and see to it that they do (KILL) after `grace_s`; `poll` goes on telling."""
        kill_at_s = self._clock.monotonic_s() + grace_s
        for child in self._running():
            child.terminate()
        self._kill_at_s = kill_at_s if self._kill_at_s is None else min(kill_at_s, self._kill_at_s)

    def _running(self) -> list[process.Child[bytes]]:
        return [c for c in self._children.values() if not isinstance(c, int) and c.poll() is None]


def start_steps(
    steps: Sequence[Step],
    environments: Sequence[Mapping[str, str]],
    placement: Sequence[str],
    output: Path,
    clock: Clock,
    say: Callable[[str], None],
) -> Steps:
    """Start all, each in its environment, where `placement` (for srun) says. What cannot be started has failed."""
    children: dict[str, process.Child[bytes] | int] = {}
    for step, environment in zip(steps, environments, strict=True):
        argv = (*step.argv[: step.place], *placement, *step.argv[step.place :]) if step.place else step.argv
        children[step.name] = _start(step.name, argv, environment, output, say)
    return Steps(children, clock)


def _start(
    name: str, argv: Sequence[str], environment: Mapping[str, str], output: Path, say: Callable[[str], None]
) -> process.Child[bytes] | int:
    try:
        return process.start(argv, env=environment, log=output, session=False)
    except ProgramMissing as error:
        say(f"fleetctl: step {name}: {error.message}")
        return _NOT_FOUND
    except OSError as error:  # too many arguments, no memory, a full disk under the log
        say(f"fleetctl: step {name} could not be started: {error.strerror}")
        return _NOT_STARTED
