"""The env_file: KEY=VALUE lines with secrets, readable by their owner only, never executed and never copied."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from fleetctl.errors import UsageError

_LINE = r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)"
_MAX_BYTES = 1 << 20  # an environment is not larger; keeps a wrong path from filling the memory


def read_env_file(path: Path) -> dict[str, str]:
    """The names and values of `path`. Blank lines and `#` lines are skipped; one pair of quotes around a value goes.

    :raises UsageError: missing, readable by others, no regular file, or a line that is not KEY=VALUE (no value is
        ever shown).
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"env_file {path}: {error.strerror}") from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"env_file {path} is not a regular file")
        if status.st_mode & 0o077:
            raise UsageError(f"env_file {path} can be read by others", remedy=f"chmod 600 {path}")
        raw = b""
        while len(raw) <= _MAX_BYTES and (more := os.read(handle, _MAX_BYTES)):
            raw += more
    finally:
        os.close(handle)
    if len(raw) > _MAX_BYTES:
        raise UsageError(f"env_file {path} is larger than 1 MiB")
    return parse_env_file(raw, str(path))


def parse_env_file(raw: bytes, source: str) -> dict[str, str]:
    """:raises UsageError: names the line, never its text."""
    values: dict[str, str] = {}
    for number, line in enumerate(raw.split(b"\n"), start=1):
        text = line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        match = re.fullmatch(_LINE, text)
        if not match or "\0" in text:
            raise UsageError(f"env_file {source}:{number}: expected KEY=VALUE")
        values[match[1]] = _unquoted(match[2].strip())
    return values


def _unquoted(value: str) -> str:
    paired = len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if paired else value
