"""Which key a host should have: the known_hosts files of OpenSSH (sshd(8)), for many hosts at once."""

from __future__ import annotations

import base64
import contextlib
import functools
import hmac
import re
from collections.abc import Iterable
from pathlib import Path

from fleetctl.errors import SshError

_SYSTEM = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts")  # ssh_config(5)

HostKey = tuple[str, str]  # type, base64


class KnownHosts:
    """The lines of known_hosts files (sshd(8)), sorted once. A line that makes no sense is none."""

    def __init__(self, lines: Iterable[str], place: Path) -> None:
        self.place = place  # where a person adds a line
        self._named: dict[str, list[HostKey]] = {}
        self._patterns: list[tuple[str, HostKey]] = []
        self._hashed: list[tuple[bytes, bytes, HostKey]] = []  # salt, digest
        self._revoked: set[str] = set()
        for line in lines:
            fields = line.split()
            if len(fields) < 3 or fields[0].startswith("#"):
                continue
            if fields[0] == "@revoked":
                self._revoked.update(fields[2:])
            elif not fields[0].startswith("@"):
                self._note(fields[0], (fields[1], fields[2]))

    def _note(self, names: str, key: HostKey) -> None:
        if names.startswith("|1|"):
            with contextlib.suppress(ValueError):
                salt, digest = (base64.b64decode(part, validate=True) for part in names[3:].split("|"))
                self._hashed.append((salt, digest, key))
        elif set(names) & set("*?!"):
            self._patterns.append((names, key))
        else:
            for name in set(names.lower().split(",")):
                self._named.setdefault(name, []).append(key)

    @classmethod
    def of(cls, named: Path | None) -> KnownHosts:
        """:raises SshError: the file that was named cannot be read; those of the system may be missing."""
        paths = [named] if named else [Path(name).expanduser() for name in _SYSTEM]
        lines: list[str] = []
        for path in paths:
            try:
                lines += path.read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError as error:
                if named:
                    remedy = "--known-hosts names a file of host keys"
                    raise SshError(f"{path}: {error.strerror}", remedy=remedy) from None
        return cls(lines, paths[0])

    def keys(self, name: str) -> list[HostKey]:
        """(type, base64) of each key of this host, as `node1` or `[node1]:2022`, without those that are revoked."""
        name = name.lower()
        found = list(self._named.get(name, ()))
        found += [key for names, key in self._patterns if _matches(names, name)]
        text = name.encode()
        found += [key for salt, digest, key in self._hashed if hmac.digest(salt, text, "sha1") == digest]
        return [key for key in found if key[1] not in self._revoked]

    def is_revoked(self, key: str) -> bool:
        """Whether a line withdraws this key (base64), for any host."""
        return key in self._revoked


def _matches(patterns: str, name: str) -> bool:
    """Whether the first field of a line of known_hosts names this host; one `!pattern` outweighs all others."""
    parts = patterns.lower().split(",")
    if any(part.startswith("!") and _pattern(part[1:]).fullmatch(name) for part in parts):
        return False
    return any(not part.startswith("!") and _pattern(part).fullmatch(name) for part in parts)


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    """`*` and `?` as in a shell; a bracket is a bracket: `[node*]:2022`."""
    return re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."))
