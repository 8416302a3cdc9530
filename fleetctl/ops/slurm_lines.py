"""The lines of slurm.conf that make Slurm run what `fleetctl node install` has brought. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """One setting; `why` fits into a comment above it."""

    key: str
    value: str
    why: str

    @property
    def text(self) -> str:
        return f"{self.key}={self.value}"


_WARNING = """\
# Each replaces what slurm.conf says by that name so far: merge them.
# How to chain them with scripts of your own: docs/nodes.md, slurm.conf.
"""


def slurm_lines(prefix: str) -> tuple[Line, ...]:
    """For an install under `prefix`, in the order to write them."""
    current = f"{prefix}/current"
    return (
        Line(
            "Prolog",
            f"{current}/prolog/fleetctl-prolog.sh",
            "looks at the job's GPUs before it starts; a Prolog of your own: chain both",
        ),
        Line(
            "Epilog",
            f"{current}/epilog/fleetctl-epilog.sh",
            "clears up after this job alone, and looks again; chain it likewise",
        ),
        Line(
            "PrologFlags",
            "Alloc",
            "the prolog runs before the job's script, not at its first srun; add Alloc to the flags that you have",
        ),
        Line(
            "PrologEpilogTimeout",
            "60",
            "Slurm's default waits for ever; the checks end by themselves after 8 s (deadline_s)",
        ),
        Line(
            "HealthCheckProgram",
            f"{current}/prolog/fleetctl-periodic.sh",
            "looks at the whole node, and brings back; a program of your own: chain both",
        ),
        Line("HealthCheckInterval", "300", "seconds; without it the program never runs"),
        Line("HealthCheckNodeState", "ANY,CYCLE", "CYCLE spreads it over the interval, not all nodes at one moment"),
        Line(
            "SchedulerParameters",
            "nohold_on_prolog_fail",
            "a job whose prolog failed starts elsewhere instead of being held; add it to what you have there",
        ),
    )


def conf_text(prefix: str) -> str:
    """The lines with their reasons, to be pasted into slurm.conf, and what they would do there."""
    return _WARNING + "".join(f"# {line.why}\n{line.text}\n" for line in slurm_lines(prefix))
