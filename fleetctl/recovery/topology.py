"""Which switch or rack each node hangs on, by a file of the site. Pure but for reading it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from fleetctl.errors import UsageError
from fleetctl.slurm.hosts import expand

_MOST_BYTES = 16 << 20
_PAIR = re.compile(r"([A-Za-z]+)\s*=\s*(\S+)", re.ASCII)


def load_topology(path: str) -> Mapping[str, str]:
    """Node -> its leaf switch or rack.

    :raises UsageError: it cannot be read, or a line in it says something else; the text names the line.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", remedy="name Slurm's topology.conf, or a file of it") from None
    if len(text) > _MOST_BYTES:
        raise UsageError(f"{path} has more than {_MOST_BYTES} bytes", remedy="name Slurm's topology.conf")
    return parse_topology(text, path)


def parse_topology(text: str, where: str) -> Mapping[str, str]:
    """Lines of Slurm's topology.conf (SwitchName=... Nodes=..., topology.conf.5), or `NODE SWITCH`, both with host
    lists. Switches that only join switches are passed over.

    :raises UsageError: a line says something else.
    """
    found: dict[str, str] = {}
    for number, line in _lines(text):
        try:
            nodes, switch = _line(line)
            found.update(dict.fromkeys(expand(nodes), switch))
        except ValueError as error:
            raise UsageError(
                f"{where}, line {number}: {error}", remedy="`SwitchName=leaf1 Nodes=node[1-32]`, or `node[1-32] leaf1`"
            ) from None
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Without comments; a backslash joins a line with the next (slurm.conf.5)."""
    joined, began = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        began = began or number
        joined += line.partition("#")[0].rstrip()
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        if joined.strip():
            yield began, joined.strip()
        joined, began = "", 0
    if joined.strip():
        yield began, joined.strip()


def _line(line: str) -> tuple[str, str]:
    """:raises ValueError: it is neither form."""
    if "=" in line:
        pairs = {key.lower(): value for key, value in _PAIR.findall(line)}
        if "switchname" in pairs:
            return pairs.get("nodes", ""), pairs["switchname"]
        if "blockname" in pairs:  # topology/block, from 23.11
            return pairs.get("nodes", ""), pairs["blockname"]
        if "blocksizes" in pairs:
            return "", ""
        raise ValueError(f"{line[:80]!r} names no switch")
    words = line.split()
    if len(words) != 2:
        raise ValueError(f"{line[:80]!r} is not `NODE SWITCH`")
    return words[0], words[1]
