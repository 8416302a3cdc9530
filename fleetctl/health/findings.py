"""How findings are made: their words, their parts, and what an nvmlReturn means for a node. Pure."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from fleetctl.health.model import Asked, Care, Change, Finding, Gpu, Mark, Outcome, Phase, Read, Readings, Scalar
from fleetctl.health.record import NamedTuple
from fleetctl.health.rules import Rules
from fleetctl.health.wanted import Profile

Findings = Tuple[Finding, ...]

# nvml.h, nvmlReturn_t
CODES: Dict[int, str] = {
    1: "uninitialized",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    7: "insufficient size",
    9: "driver not loaded",
    10: "time-out",
    12: "library not found",
    13: "function not found",
    14: "corrupted InfoROM",
    15: "GPU is lost",
    16: "GPU must be reset",
    17: "operating system",
    18: "driver and library do not match",
    19: "in use",
    20: "out of memory",
    21: "no data",
    23: "insufficient resources",
    25: "argument version mismatch",
    27: "not ready",
    28: "GPU not found",
    29: "invalid state",
    999: "unknown error",
}
# These say that a value does not exist here, or is none of our business: they never close a node.
NEVER = frozenset({2, 3, 4, 6, 13})
NO_PERMISSION = 4
LOST = 15
UNKNOWN = 999
_ABSURD = 1 << 64  # NVML has no wider numbers
# These say that the GPU or its driver does not work.
CLOSES: Dict[int, Care] = {
    9: Care.DRAIN,
    10: Care.DRAIN,
    14: Care.DRAIN,
    15: Care.REBOOT,
    16: Care.RESET,
    18: Care.DRAIN,
    999: Care.DRAIN,
}


class Scene(NamedTuple):
    """All that a check looks at. Where no profile is known, an empty one stands: it expects nothing."""

    readings: Readings
    profile: Profile
    asked: Asked
    changes: Mapping[str, Change]
    rules: Rules

    @property
    def for_a_job(self) -> bool:
        """Only the job's GPUs count, and what its start must wait for."""
        return self.asked.phase in (Phase.PROLOG, Phase.EPILOG)


class Part(NamedTuple):
    """What a finding is about: its name for a person, and its stable key."""

    subject: str
    key: str


NODE = Part("node", "node")


def gpu_part(gpu: Gpu) -> Part:
    """`GPU 3 (0000:1b:00.0)`, by its NVML index and its place on PCIe."""
    if gpu.pci is None:
        return Part(f"GPU {gpu.index}", f"gpu/index-{gpu.index}")
    return Part(f"GPU {gpu.index} ({gpu.pci})", f"gpu/{gpu.pci}")


def code_words(code: int) -> str:
    """`GPU is lost (NVML 15)`."""
    return f"{CODES.get(code, 'error')} (NVML {code})"


def passed(
    check: str,
    part: Part,
    words: str,
    value: Optional[Scalar] = None,
    expected: Optional[Scalar] = None,
    unit: str = "",
) -> Finding:
    """A value was read, and it is fine."""
    return Finding(check, Outcome.PASS, part.subject, part.key, words, value, expected, unit)


def failed(
    check: str,
    part: Part,
    words: str,
    care: Care,
    value: Optional[Scalar] = None,
    expected: Optional[Scalar] = None,
    unit: str = "",
    mark: Mark = Mark.NONE,
) -> Finding:
    """A value was read, and it is not fine."""
    return Finding(check, Outcome.FAIL, part.subject, part.key, words, value, expected, unit, care, mark)


def untold(check: str, part: Part, words: str, care: Care = Care.IGNORE, code: Optional[int] = None) -> Finding:
    """A value was not read."""
    return Finding(check, Outcome.CANNOT_TELL, part.subject, part.key, words, care=care, code=code)


def unread(check: str, gpu: Gpu, what: str, read: Optional[Read]) -> Finding:
    """Why this value of a GPU is not known.

    A code that closes is told once for the whole GPU, by `gpu_lost`: here it is only its echo.
    """
    part = gpu_part(gpu)
    if read is None:
        return untold(check, part, f"{what} of {part.subject} was not read")
    if read.code == 0:
        return untold(check, part, f"{what} of {part.subject} reads as {str(read.value)[:40]!r}", Care.WATCH)
    echo = read.code in CLOSES or (read.code in NEVER and (read.code != NO_PERMISSION or mig_on(gpu)))
    words = f"{what} of {part.subject} cannot be read: {code_words(read.code)}"
    return untold(check, part, words, Care.IGNORE if echo else Care.WATCH, read.code)


def number(read: Optional[Read]) -> Optional[float]:
    """The number that was read, whole ones as int; None: none was."""
    return None if read is None or read.code != 0 else finite(read.value)


def finite(value: Any) -> Optional[float]:
    """The value where it is a number that can be counted with: not NaN, not infinite, not absurd."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if -_ABSURD < value < _ABSURD else None


def mig_on(gpu: Gpu) -> bool:
    """Whether this GPU is cut into instances."""
    return number(gpu.reads.get("mig_mode")) == 1


def plain(value: float) -> str:
    """`12`, `0.5`, `4294967295`."""
    return str(int(value)) if float(value).is_integer() else f"{value:.3g}"


def numbers(values: Sequence[int]) -> str:
    """`3, 7, 9`."""
    return ", ".join(str(value) for value in values)
