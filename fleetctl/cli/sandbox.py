"""`fleetctl sandbox`: a real multi-node Slurm on this machine, to try and to break things."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fleetctl.cli.context import app
from fleetctl.cli.output import json_option, note, print_json, print_table

if TYPE_CHECKING:
    from fleetctl.sandbox.cluster import Sandbox, Status

dir_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where it lives; a short path. [default: ~/.fleetctl/sandbox]",
)


@click.group()
def command() -> None:
    """A real Slurm cluster on this machine: several nodes, fake GPUs, nothing system-wide.

    \b
    Example:
      eval "$(fleetctl sandbox up)"     # start it and point this shell at it
      srun -N2 --gpus-per-node=8 env    # use it like any cluster
      fleetctl sandbox node kill node2  # break it
      fleetctl sandbox down
    """


@command.command()
@dir_option
@click.option("--nodes", default=4, show_default=True, help="Nodes with GPUs: node1, node2, ...")
@click.option("--gpus", default=8, show_default=True, help="Fake GPUs of each of them.")
@click.option("--cpu-nodes", default=0, show_default=True, help="More nodes without GPUs: cpu1, cpu2, ...")
@click.option("--accounting", is_flag=True, help="With slurmdbd and MariaDB, so that sacct works.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A line of slurm.conf; replaces ours.")
@click.option("--partition", "partitions", multiple=True, metavar="NAME:KEY=VALUE,...", help="One more partition.")
@click.option("--private-tmp", is_flag=True, help="Each node gets a /tmp of its own (root only).")
@json_option
def up(
    directory: Path | None,
    nodes: int,
    gpus: int,
    cpu_nodes: int,
    accounting: bool,
    settings: tuple[str, ...],
    partitions: tuple[str, ...],
    private_tmp: bool,
    as_json: bool,
) -> None:
    """Start a cluster, or find the one that runs. Prints one line for `eval`.

    \b
    Example:
      eval "$(fleetctl sandbox up)"
      eval "$(fleetctl sandbox up --nodes 2 --accounting --set SlurmdTimeout=60)"
      fleetctl sandbox up --dir /tmp/two --partition debug:Nodes=node1,MaxTime=10
    """
    from fleetctl.sandbox import cluster
    from fleetctl.sandbox.model import SandboxConfig, parse_partition, parse_setting

    config = SandboxConfig(
        nodes=nodes,
        gpus=gpus,
        cpu_nodes=cpu_nodes,
        accounting=accounting,
        private_tmp=private_tmp,
        settings=tuple(parse_setting(text) for text in settings),
        partitions=tuple(parse_partition(text) for text in partitions),
    )
    sandbox = cluster.up(config, _directory(directory), app().clock, note)
    if as_json:
        print_json({"directory": str(sandbox.directory), **_status_json(sandbox.status())})
    else:
        click.echo(f"export SLURM_CONF={shlex.quote(str(sandbox.slurm_conf))}")
        note("Ready. Slurm's commands and fleetctl use it where that line is exported: `eval` it.")


@command.command()
@dir_option
@json_option
def down(directory: Path | None, as_json: bool) -> None:
    """End every process of the sandbox; only its logs stay.

    \b
    Example:
      fleetctl sandbox down
    """
    from fleetctl.sandbox import cluster

    where = _directory(directory)
    ended = cluster.down(where, app().clock)
    if as_json:
        print_json({"directory": str(where), "was_up": ended})
    else:
        note(f"The sandbox in {where} is down." if ended else f"No sandbox was up in {where}.")


@command.command()
@dir_option
@json_option
def status(directory: Path | None, as_json: bool) -> None:
    """Say how each node is, here and in Slurm's eyes. Exit 13 when something died.

    \b
    Example:
      fleetctl sandbox status
    """
    from fleetctl.errors import SandboxError

    found = _find(directory).status()
    if as_json:
        print_json(_status_json(found))
    else:
        print_table(
            ("NODE", "SLURMD", "SLURM"), [(row.name, row.slurmd, row.slurm or "unknown") for row in found.nodes]
        )
    if found.dead:
        raise SandboxError(
            f"died: {', '.join(found.dead)}", remedy="fleetctl sandbox down, then up; logs are in its log/"
        )
    if not found.answers:
        raise SandboxError("slurmctld does not answer", remedy="its log is log/slurmctld.log")


@command.group()
def node() -> None:
    """Break one node, and mend it.

    \b
    Example:
      fleetctl sandbox node kill node2     # power failure;       start mends it
      fleetctl sandbox node freeze node2   # everything hangs;    wake mends it
      fleetctl sandbox node cut node2      # Slurm loses it, its ranks run on; heal mends it
    """


def _directory(given: Path | None) -> Path:
    if given is not None:
        return app().cwd / given
    home = app().environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".fleetctl" / "sandbox"


def _find(directory: Path | None) -> Sandbox:
    from fleetctl.sandbox import cluster

    return cluster.find(_directory(directory), app().clock)


def _status_json(found: Status) -> dict[str, Any]:
    return {
        "slurm_conf": found.slurm_conf,
        "answers": found.answers,
        "dead": list(found.dead),
        "nodes": [{"name": row.name, "slurmd": row.slurmd, "slurm": row.slurm} for row in found.nodes],
    }


def _node_verb(verb: str, effect: str, summary: str) -> Callable[..., None]:
    def act(name: str, directory: Path | None, as_json: bool) -> None:
        getattr(_find(directory).node(name), verb)()
        if as_json:
            print_json({"node": name, "done": verb})
        else:
            note(f"{name} {effect}.")

    act.__doc__ = f"{summary}\n\n\b\nExample:\n  fleetctl sandbox node {verb} node2\n"
    return node.command(verb)(dir_option(json_option(click.argument("name", metavar="NAME")(act))))


_node_verb(
    "kill", "is dead: slurmd, steps and ranks are gone", "Power failure: slurmd, its steps and ranks end at once."
)
_node_verb("start", "is up again", "Power on after kill; returns when Slurm uses the node again.")
_node_verb("freeze", "is frozen", "Everything on the node stands still: slurmd, steps and ranks.")
_node_verb("wake", "goes on", "Undo freeze, and cut.")
_node_verb("cut", "is cut off", "Slurm reaches the node no more, while its ranks run on and can write.")
_node_verb("heal", "is reachable again", "Undo cut.")
_node_verb(
    "dead",
    "is dead: nothing of it runs",
    "Prove that a node is dead: exit 0 only if nothing of it runs. For `fleetctl daemon run --fence`.",
)
