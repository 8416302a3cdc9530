"""Quoting for what ends up in a batch script: #SBATCH lines, bash words and file name patterns."""

from __future__ import annotations

import re

from fleetctl.errors import UsageError

_SHELL_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)
_CONTROL = r"[\x00-\x1f\x7f-\x9f\u2028\u2029]"
_UNSAFE_IN_SCRIPT = r"[\x01-\x08\x0b-\x1f\x7f]"  # all but tab and newline


def directive_quote(value: str) -> str:
    """Quote for a #SBATCH line: a backslash escapes inside both kinds of quotes (src/sbatch/opt.c, get_argument).

    :raises UsageError: a control character, which no quoting keeps on one line.
    """
    if not value.isprintable() and re.search(_CONTROL, value):
        raise UsageError(f"{value!r} has a control character, which an #SBATCH line cannot keep")
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def sh_quote(value: str) -> str:
    """Quote for bash. Control characters are spelled out: sbatch refuses a script with a DOS line break."""
    if _SHELL_SAFE.fullmatch(value):
        return value
    if not value.isprintable() and re.search(_UNSAFE_IN_SCRIPT, value):
        return "$'" + "".join(_ansi_c(char) for char in value) + "'"
    return "'" + value.replace("'", "'\\''") + "'"


def _ansi_c(char: str) -> str:
    if char in "\\'":
        return "\\" + char
    return f"\\{ord(char):03o}" if ord(char) < 0x20 or ord(char) == 0x7F else char


def path_pattern(path: str) -> str:
    """A path for --output: `%` doubled; a backslash would switch the whole pattern off (sbatch.1, filename pattern).

    :raises UsageError: the path has a backslash.
    """
    if "\\" in path:
        raise UsageError(f"{path!r} has a backslash, which Slurm cannot keep in --output; choose another run root")
    return path.replace("%", "%%")
