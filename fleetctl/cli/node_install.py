"""`fleetctl node install`: bring the node checks to nodes, compare, or go back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fleetctl.cli.context import app
from fleetctl.cli.output import json_option, note, one_line, print_json, print_table

if TYPE_CHECKING:
    from fleetctl.ops.bundle import Bundle
    from fleetctl.ops.install import Nodes
    from fleetctl.ops.install_plan import HostResult

_COLUMNS = ("HOST", "OUTCOME", "BEFORE", "AFTER", "WHY")
_HAS_IT = ("installed", "same")
_FILE = click.Path(path_type=Path)


@click.command("install")
@click.argument("hosts", metavar="HOST...", nargs=-1, required=True)
@click.option("--user", metavar="NAME", help="Who logs in there; Slurm runs the checks as root. [default: you]")
@click.option("--port", type=click.IntRange(1, 65535), default=22, show_default=True, help="Port of sshd.")
@click.option("--identity", type=_FILE, metavar="FILE", help="Private key. [default: the agent's, then ~/.ssh/id_*]")
@click.option("--known-hosts", type=_FILE, metavar="FILE", help="Host keys that count. [default: as ssh has it]")
@click.option("--prefix", default="/opt/fleetctl", show_default=True, metavar="DIR", help="Where, on the nodes.")
@click.option("--site", type=_FILE, metavar="FILE", help="site.json: what this site wants of the checks.")
@click.option(
    "--profile", type=_FILE, metavar="FILE", help="profile.json: what a good node of yours has (`node learn`)."
)
@click.option("--python", default="/usr/bin/python3", show_default=True, metavar="PATH", help="Python on the nodes.")
@click.option("--jobs", type=click.IntRange(1, 256), default=16, show_default=True, help="Nodes at a time.")
@click.option("--diff", "only_diff", is_flag=True, help="Say what would change on each node; change nothing.")
@click.option("--rollback", "goes_back", is_flag=True, help="Switch back to the release before.")
@json_option
def command(
    hosts: tuple[str, ...],
    user: str | None,
    port: int,
    identity: Path | None,
    known_hosts: Path | None,
    prefix: str,
    site: Path | None,
    profile: Path | None,
    python: str,
    jobs: int,
    only_diff: bool,
    goes_back: bool,
    as_json: bool,
) -> int:
    """Copy the node checks to nodes by SSH and switch to them at once; then print lines for slurm.conf.

    HOST is a host or a Slurm host list. A node whose host key is not known, or has changed, is refused; the others go
    on. A node that has this release already is left alone.

    Slurm drains a node that lacks the script which slurm.conf names: the lines come once every named node has them.

    Exit code 0: all nodes are as wanted; 15: some are not, and stderr says which and why; 130: Ctrl-C, run it again.

    \b
    Example:
      fleetctl node install 'gpu[01-64]' --user root --site site.json
      fleetctl node install gpu07 --user root --site site.json --diff
      fleetctl node install 'gpu[01-64]' --user root --rollback
    """
    from fleetctl.errors import UsageError
    from fleetctl.ops import install
    from fleetctl.ssh import Login

    if only_diff and goes_back:
        raise UsageError("--diff and --rollback exclude each other")
    for path in (identity, known_hosts):
        if path is not None:
            read_file(path)  # here, not once for each host
    named = _hosts(hosts)
    nodes = install.Nodes(
        named,
        Login(user, port, identity, known_hosts),
        _absolute(prefix, "--prefix"),
        _absolute(python, "--python"),
        jobs,
        app().clock,
    )
    if goes_back:
        results = install.roll_back(nodes, _progress(len(named)))
    else:
        bundle = _bundle(python, site, profile)
        results = (install.diff if only_diff else install.install)(nodes, bundle, _progress(len(named)))
    _print(nodes, results, with_lines=not only_diff and not goes_back, as_json=as_json)
    return _conclude(results)


def _hosts(texts: Sequence[str]) -> tuple[str, ...]:
    from fleetctl.errors import UsageError
    from fleetctl.slurm.hosts import expand

    try:
        named = tuple(dict.fromkeys(host for text in texts for host in expand(text)))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not named:
        raise UsageError("no host is named")
    return named


def read_file(path: Path) -> bytes:
    """:raises UsageError: it cannot be read."""
    from fleetctl.errors import UsageError

    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _absolute(path: str, option: str) -> str:
    """A path that needs no quoting in slurm.conf or in a script.

    :raises UsageError: it is none.
    """
    import re

    from fleetctl.errors import UsageError

    if re.fullmatch(r"(/[A-Za-z0-9_+.-]+)+", path) is None or "/.." in path:
        raise UsageError(f"{option}: {path!r} is no absolute path of plain letters, as slurm.conf needs it")
    return path


def _bundle(python: str, site: Path | None, profile: Path | None) -> Bundle:
    """:raises UsageError: a file says what the nodes would not understand."""
    from fleetctl.errors import UsageError
    from fleetctl.health.profile import load_profile
    from fleetctl.health.rules import read_rules
    from fleetctl.health.site import parse_site
    from fleetctl.ops.bundle import make_bundle

    wishes = read_file(site) if site else None
    if site and wishes is not None:
        read = parse_site(wishes.decode("utf-8", "replace"), "node")
        if wrong := (*read.complaints, *read_rules(read.limits, read.care)[1]):
            raise UsageError(f"{site}: {'; '.join(wrong)}", remedy="docs/nodes.md has the keys")
    wanted = read_file(profile) if profile else None
    if profile and wanted is not None:
        try:
            load_profile(wanted.decode("utf-8", "replace"))
        except ValueError as error:
            raise UsageError(f"{profile}: {error}", remedy="`fleetctl node learn` writes one") from None
    return make_bundle(python, wishes, wanted)


class _progress:
    """`n of m` on a terminal's last line; nothing in a pipe. What failed is said at once."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._is_seen = sys.stderr.isatty()

    def __call__(self, done: int, last: HostResult) -> None:
        wipe = "\r\x1b[K" if self._is_seen else ""
        if last.words:
            note(f"{wipe}fleetctl: {one_line(last.words)}")
            if last.remedy:
                note(f"  {one_line(last.remedy)}")
        if self._is_seen:
            click.echo(f"{wipe}{done} of {self._total}", err=True, nl=done == self._total)


def _print(nodes: Nodes, results: Sequence[HostResult], *, with_lines: bool, as_json: bool) -> None:
    from fleetctl.ops.slurm_lines import conf_text, slurm_lines

    is_everywhere = all(one.outcome.value in _HAS_IT for one in results)
    if as_json:
        hosts = [{**one._asdict(), "outcome": one.outcome.value} for one in results]
        lines = [line.text for line in slurm_lines(nodes.prefix)] if with_lines and is_everywhere else []
        print_json({"prefix": nodes.prefix, "hosts": hosts, "slurm_conf": lines})
        return
    rows = [(one.host, one.outcome.value, one.before or "-", one.after or "-", one.words) for one in results]
    print_table(_COLUMNS, rows, folds=("WHY",))
    for one in results:
        if one.diff:
            click.echo(f"\n{one.host}:")
            for line in one.diff:
                click.echo(one_line(line))
    if with_lines and not is_everywhere:
        note("\nNo lines for slurm.conf yet: Slurm would drain the nodes that lack the scripts.")
    elif with_lines:
        note("\nFor slurm.conf, once every node of the cluster and the image of new ones have these files:")
        click.echo("\n" + conf_text(nodes.prefix), nl=False)


def _conclude(results: Sequence[HostResult]) -> int:
    """The exit code.

    :raises InstallError: not every node is as wanted.
    """
    from fleetctl.errors import INTERRUPTED_EXIT_CODE, InstallError
    from fleetctl.slurm.hosts import fold

    unknown = [one.host for one in results if one.outcome.value == "not_known"]
    if unknown:
        note(f"fleetctl: interrupted; {len(unknown)} of {len(results)} nodes are not known: {fold(unknown)}")
        note("  each has its old release or the new one: run it again")
        return INTERRUPTED_EXIT_CODE
    failed = [one.host for one in results if one.words]
    if failed:
        raise InstallError(f"{len(failed)} of {len(results)} nodes failed: {fold(failed)}")
    return 0
