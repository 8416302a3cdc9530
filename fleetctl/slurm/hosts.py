"""Slurm host lists, `gpu[01-04,07]`: expanded and folded by ClusterShell, which is imported only when used."""

from __future__ import annotations

import re
from collections.abc import Iterable

# ClusterShell reads these as set operators and group names; Slurm knows none of them.
_OPERATORS = frozenset("!&^@")
_PLAIN = re.compile(r"[A-Za-z0-9._-]*", re.ASCII)  # outside brackets
_BRACKETS = re.compile(r"\[([0-9,-]*)\]", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)
MAX_HOSTS = 65_536  # Slurm's own limit of a host list is 64 Ki (hostlist.c, MAX_RANGE)


def expand(text: str) -> tuple[str, ...]:
    """The hosts of a list, part by part: `n[1-2],m7` -> `n1`, `n2`, `m7`; an empty text has none.

    :raises ValueError: it is no host list.
    """
    nodes = _node_set(text)
    return tuple(dict.fromkeys(host for part in nodes for host in part))


def fold(hosts: Iterable[str]) -> str:
    """The shortest list that names `hosts`, sorted: `n1`, `n2` -> `n[1-2]`.

    :raises ValueError: a name that no host has.
    """
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    whole = NodeSet(resolver=RESOLVER_NOGROUP)
    for host in hosts:
        for part in _node_set(host):
            whole.update(part)
    return str(whole)


def _node_set(text: str) -> list[Iterable[str]]:
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    if found := sorted(_OPERATORS & set(text)):
        raise ValueError(f"not a Slurm host list: {text[:80]!r} has {found[0]!r}")
    parts: list[Iterable[str]] = []
    count = 0
    for part in _split(text):
        count += _count(part)  # before ClusterShell, which would build n[1-999999999] in memory
        if count > MAX_HOSTS:
            raise ValueError(f"not a Slurm host list: more than {MAX_HOSTS} hosts in {text[:80]!r}")
        try:
            parts.append(NodeSet(part, resolver=RESOLVER_NOGROUP))
        except NodeSetException as error:
            raise ValueError(f"not a Slurm host list: {error}") from None
    return parts


def _count(part: str) -> int:
    count = 1
    for group in _BRACKETS.findall(part):
        ranges = [_RANGE.fullmatch(span) for span in group.split(",")]
        if not all(ranges):
            raise ValueError(f"not a Slurm host list: {part[:80]!r}")
        count *= sum(int(match[2] or match[1]) - int(match[1]) + 1 for match in ranges if match)
    if _PLAIN.fullmatch(_BRACKETS.sub("", part)) is None:
        raise ValueError(f"not a Slurm host list: {part[:80]!r}")
    return count


def _split(text: str) -> list[str]:
    """The parts between commas outside brackets, so that the order of the list is kept."""
    return [part for part in re.split(r",(?![^\[]*\])", text) if part]
