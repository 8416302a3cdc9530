"""Durations, memory sizes and host lists: parse and print, round trip.

Slurm's own forms are read where they have one meaning; a form with two meanings is refused with both spelled out.
"""

from __future__ import annotations

import re

from msgspec import Struct

# Nine digits at most: int() refuses very long ones in words of its own. Texts, compiled at their first use: compiling
# at import would cost every command several milliseconds.
_UNIT_S = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_WORDED = r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?"
_CLOCK = r"(?:(\d{1,9})-)?(\d{1,9}):([0-5]?\d):([0-5]?\d)"
_DAYS_HOURS = r"(\d{1,9})-(\d{1,9})(?::([0-5]?\d))?"
_MEMORY = r"(\d{1,9})([KMGT])(?:i?B)?"
_KIB = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}


class Duration(Struct, frozen=True, order=True):
    """A span of whole seconds."""

    seconds: int

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Read `90m`, `1d12h`, `4:00:00`, `2-00:00:00`, `2-12` or `2-12:30` (slurm: sbatch.1, --time).

        :raises ValueError: says what was expected. `12:30` and a bare number are refused: people disagree on them.
        """
        text = text.strip()
        if text and (match := re.fullmatch(_WORDED, text, re.ASCII)):
            parts = zip(match.groups(), _UNIT_S.values(), strict=True)
            return cls(sum(int(number) * unit for number, unit in parts if number))
        if match := re.fullmatch(_CLOCK, text, re.ASCII):
            days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
            return cls(days * 86_400 + hours * 3_600 + minutes * 60 + seconds)
        if match := re.fullmatch(_DAYS_HOURS, text, re.ASCII):
            days, hours, minutes = (int(part or 0) for part in match.groups())
            return cls(days * 86_400 + hours * 3_600 + minutes * 60)
        if text.isascii() and text.isdigit():
            raise ValueError(f"a duration with a unit, such as {text}m or {text}h")
        if re.fullmatch(r"\d+:\d+", text, re.ASCII):
            raise ValueError(f"a duration of one meaning: 0:{text} (minutes:seconds) or {text}:00 (hours:minutes)")
        raise ValueError("a duration such as 90m, 4h30m, 1d12h, 4:00:00 or 2-00:00:00")

    def __str__(self) -> str:
        """The shortest worded form: `1d12h`, `90s` -> `1m30s`; zero is `0s`."""
        left, out = self.seconds, ""
        for name, size in _UNIT_S.items():
            count, left = divmod(left, size)
            out += f"{count}{name}" if count else ""
        return out or "0s"

    def slurm(self) -> str:
        """`D-HH:MM:SS`, the one form that sbatch cannot misread."""
        days, left = divmod(self.seconds, 86_400)
        return f"{days}-{left // 3600:02}:{left % 3600 // 60:02}:{left % 60:02}"


class MemorySize(Struct, frozen=True, order=True):
    """An amount of memory in KiB; Slurm's K, M, G and T are powers of 1024 (sbatch.1, --mem)."""

    kib: int

    @classmethod
    def parse(cls, text: str) -> MemorySize:
        """Read `64G`, `512M`, `64GB` or `64GiB`; all powers of 1024, as Slurm has it.

        :raises ValueError: says what was expected.
        """
        if match := re.fullmatch(_MEMORY, text.strip(), re.ASCII | re.IGNORECASE):
            return cls(int(match[1]) * _KIB[match[2].upper()])
        raise ValueError("a memory size with a unit, such as 64G or 512M")

    def __str__(self) -> str:
        for name, size in reversed(_KIB.items()):
            if self.kib and self.kib % size == 0:
                return f"{self.kib // size}{name}"
        return "0K"
