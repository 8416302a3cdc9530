"""`fleetctl node`: check this node, install the checks on nodes, and read what the nodes said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fleetctl.cli.context import app
from fleetctl.cli.node_check import command as check
from fleetctl.cli.node_check import learn
from fleetctl.cli.node_install import command as install
from fleetctl.cli.output import json_option, note

if TYPE_CHECKING:
    from fleetctl.health.model import Verdict

Command = TypeVar("Command", bound=Callable[..., Any])

_SHOWN = 50  # verdicts of a history without --all: about four hours of a node that is looked at every five minutes
_STALE_S = 900  # three looks of a node that is looked at every five minutes


def _shared_option(command: Command) -> Command:
    """--shared, the same on every command that reads what nodes said."""
    said = "Folder where the nodes publish (`shared` in site.json) [env FLEETCTL_NODES]."
    return click.option("--shared", type=click.Path(path_type=Path), help=said)(command)


def _stale_option(command: Command) -> Command:
    said = "Seconds after which what a node said no longer counts."
    return click.option("--stale", "stale_s", type=int, default=_STALE_S, show_default=True, help=said)(command)


@click.group()
def command() -> None:
    """Check nodes, install the checks on them, and read what they found.

    \b
    Example:
      fleetctl node check --explain
      fleetctl node ls
    """


command.add_command(check)
command.add_command(install)
command.add_command(learn)


@command.command("ls")
@click.argument("hosts", metavar="[HOST...]", nargs=-1)
@_shared_option
@_stale_option
@json_option
def list_them(hosts: tuple[str, ...], shared: Path | None, stale_s: int, as_json: bool) -> None:
    """What each node said last, and how old that is. Those that are not well come first.

    With HOST (a host, or a Slurm host list) only these, also those that never said anything.

    \b
    Example:
      fleetctl node ls
      fleetctl node ls 'gpu[01-64]' --json | jq '.[] | select(.state != "ok")'
    """
    from fleetctl.cli.node_print import print_nodes
    from fleetctl.health.spool import NodeSaid, read_shared

    folder = _folder(shared)
    try:
        found = {said.node: said for said in read_shared(str(folder))}
    except OSError as error:
        raise _unreadable(folder, error) from None
    if hosts:
        silent = "it has published nothing"
        found = {name: found.get(name, NodeSaid(name, None, silent)) for name in _expanded(hosts)}
    elif not found:
        note(f"no node has published anything in {folder}")
    print_nodes(list(found.values()), app().clock.now(), stale_s, as_json=as_json)


@command.command()
@click.argument("node")
@_shared_option
@_stale_option
@json_option
def show(node: str, shared: Path | None, stale_s: int, as_json: bool) -> None:
    """What one node said last, its findings, and its drains.

    \b
    Example:
      fleetctl node show gpu07
    """
    from fleetctl.cli.node_print import print_node

    print_node(node, _history(node, shared), app().clock.now(), stale_s, as_json=as_json)


@command.command()
@click.argument("node")
@click.option("--all", "everything", is_flag=True, help=f"Also those beyond the newest {_SHOWN}.")
@_shared_option
@json_option
def history(node: str, everything: bool, shared: Path | None, as_json: bool) -> None:
    """What one node said, newest first.

    \b
    Example:
      fleetctl node history gpu07
      fleetctl node history gpu07 --all --json | jq '.[] | select(.decision == "drain")'
    """
    from fleetctl.cli.node_print import print_history

    verdicts = _history(node, shared)[::-1]
    shown = verdicts if everything else verdicts[:_SHOWN]
    print_history(shown, app().clock.now(), as_json=as_json)
    if len(shown) < len(verdicts):
        note(f"{len(verdicts) - len(shown)} more: --all")


def _folder(shared: Path | None) -> Path:
    """:raises UsageError: nobody said where."""
    from fleetctl.errors import UsageError

    said = shared or app().environ.get("FLEETCTL_NODES")
    if not said:
        raise UsageError("where do the nodes publish?", remedy="--shared DIR, or FLEETCTL_NODES: `shared` in site.json")
    return Path(said)


def _history(node: str, shared: Path | None) -> tuple[Verdict, ...]:
    """What the node said, the oldest first; at least one verdict.

    :raises CannotTell: nothing can be read of it.
    """
    from fleetctl.errors import CannotTell
    from fleetctl.health.spool import read_history
    from fleetctl.health.store import Foreign

    folder = _folder(shared)
    try:
        verdicts = read_history(str(folder), node)
    except FileNotFoundError:
        verdicts = ()
    except Foreign as error:
        raise CannotTell(f"{folder}: {error}") from None
    except OSError as error:
        raise _unreadable(folder, error) from None
    if not verdicts:
        raise CannotTell(f"{node} has published nothing in {folder}", remedy="`fleetctl node ls` shows who has")
    return verdicts


def _unreadable(folder: Path, error: OSError) -> Exception:
    from fleetctl.errors import CannotTell

    return CannotTell(f"{folder} cannot be read: {error.strerror}", remedy="is it mounted here?")


def _expanded(hosts: tuple[str, ...]) -> list[str]:
    from fleetctl.errors import UsageError
    from fleetctl.slurm.hosts import expand

    try:
        return [host for text in hosts for host in expand(text)]
    except ValueError as error:
        raise UsageError(str(error)) from None
