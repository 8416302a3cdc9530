"""`fleetctl doctor`: what in this cluster's configuration will hurt long runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleetctl.cli.context import App, app
from fleetctl.cli.output import json_option, note, one_line, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fleetctl.ops.advice import Advice, Cluster

_USUAL = "/etc/slurm/slurm.conf"
_MOST_RUNS = 200  # the newest ones: enough to know how long a save takes
_HURT_EXIT_CODE = 1
_INDENT = " " * 11  # below the level
_MOST_COLUMNS = 100


@click.command()
@click.option("--conf", type=click.Path(dir_okay=False), metavar="FILE", help="slurm.conf [env SLURM_CONF].")
@click.option("--all", "show_all", is_flag=True, help="Show what is fine, too.")
@json_option
def command(conf: str | None, show_all: bool, as_json: bool) -> int:
    """Read slurm.conf, gres.conf and cgroup.conf, and name what will hurt, with the lines to write.

    Nothing is changed and no daemon is asked. Exit code 1: something hurts; 0: nothing is known to.

    \b
    Example:
      fleetctl doctor
      fleetctl doctor --conf /etc/slurm/slurm.conf --all
    """
    from fleetctl.ops.advice import Level
    from fleetctl.ops.doctor import examine

    here = app()
    path = Path(conf or here.environ.get("SLURM_CONF") or _USUAL)
    found = examine(_read(here, path))
    hurts = any(advice.level is Level.HURTS for advice in found)
    if as_json:
        import msgspec

        print_json({"conf": str(path), "hurts": hurts, "advice": [msgspec.to_builtins(advice) for advice in found]})
    else:
        _print(path, found, show_all=show_all)
    return _HURT_EXIT_CODE if hurts else 0


def _read(here: App, path: Path) -> Cluster:
    from fleetctl.ops.advice import Cluster
    from fleetctl.ops.slurm_conf import read_conf

    def beside(name: str) -> Path:
        return path.parent / name

    return Cluster(
        slurm=read_conf(path),
        gres=read_conf(beside("gres.conf")) if beside("gres.conf").exists() else None,
        cgroup=read_conf(beside("cgroup.conf")) if beside("cgroup.conf").exists() else None,
        has_topology_yaml=beside("topology.yaml").exists(),
        slowest_save_s=_slowest_save_s(here),
    )


def _slowest_save_s(here: App) -> float | None:
    """Of the runs here. A run that cannot be read is left out: this is about the cluster."""
    from fleetctl.cli.runs import store_of
    from fleetctl.errors import FleetctlError
    from fleetctl.rundir.attempts import Attempts

    if not here.runs_root.is_dir():
        return None
    found: list[float] = []
    for run in store_of(here).runs()[-_MOST_RUNS:]:
        try:
            attempts = Attempts(run.attempts_dir(None))
            found += [save.total_s for number in attempts.numbers() for save in attempts.saves(number)]
        except (FleetctlError, OSError):
            continue
    return max(found, default=None)


def _print(path: Path, found: Sequence[Advice], *, show_all: bool) -> None:
    from fleetctl.ops.advice import Level

    words = {Level.HURTS: "hurts", Level.MAY_HURT: "may hurt", Level.UNKNOWN: "not known", Level.FINE: "fine"}
    shown = sorted(
        (one for one in found if show_all or one.level is not Level.FINE), key=lambda one: list(words).index(one.level)
    )
    columns = _columns()
    for advice in shown:
        click.echo(_wrapped(f"{words[advice.level]:<{len(_INDENT)}}{one_line(advice.found)}", columns))
        if advice.why:
            click.echo(_wrapped(f"{_INDENT}{advice.why}", columns))
        for line in advice.lines:  # whole, so that it can be copied
            click.echo(f"{_INDENT}> {one_line(line)}")
    counts = [f"{sum(one.level is level for one in found)} {word}" for level, word in words.items()]
    note(f"{path}: {', '.join(counts)}")


def _columns() -> int | None:
    """The width to wrap at; None in a pipe, where another program cuts lines as it likes."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return max(min(get_terminal_size().columns, _MOST_COLUMNS), 3 * len(_INDENT))


def _wrapped(text: str, columns: int | None) -> str:
    if columns is None:
        return text
    from textwrap import fill

    return fill(text, columns, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)
