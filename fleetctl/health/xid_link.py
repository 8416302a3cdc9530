"""What an NVLink Xid says in its hexadecimal words: 74 (up to Hopper) and 144-150 (Blackwell). Pure.

Sources: NVIDIA's Xid catalogue, sheet "XID 144-150 Decode" (its rows are link_rules.json), and its WORKFLOW_NVLINK_ERR
for the registers of Xid 74.
"""

from __future__ import annotations

import json
import re
from typing import Any, Optional, Sequence, Tuple

from fleetctl.health.model import Care
from fleetctl.health.record import NamedTuple

NVLINK5 = range(144, 151)
REPEATED = 3  # "if seen more than 2 times"

# The body is looked for at the line's end: a process may call itself anything, and its name comes first.
_BODY = (
    r"([A-Za-z0-9_/]+(?: [A-Za-z0-9_/]+)?)\s+(Fatal|Non-?fatal)\s+XC ?\d\s+i ?\d\s+Link\s+(-?\d+)"
    r"\s+[(\[](0x[0-9a-fA-F]{1,8}(?:[ ,]+0x[0-9a-fA-F]{1,8})*)[)\]]?\s*$"
)
_SEVERITY = r"\b(Fatal|Non-?fatal)\b"
_REGISTERS = r"\((0x[0-9a-fA-F]{1,8}(?:[ ,]+0x[0-9a-fA-F]{1,8}){4,})\)?\s*$"
_LINK = r"\blink (\d+)"
_MOST_CHARS = 600  # a line of the kernel is at most about 1000; what counts is at its end


class LinkRule(NamedTuple):
    """One row of NVIDIA's table. `old` and `new` are (mask, value) of the first word before and from driver R575 on,
    which moved the sub-code from bits 9:5 to bits 6:0. `status` holds the second words that it is about; empty: any.
    """

    xid: int
    units: Tuple[str, ...]
    old: Tuple[int, int]
    new: Tuple[int, int]
    status: Tuple[int, ...]
    immediate: str
    investigatory: str


class LinkFault(NamedTuple):
    """What an NVLink Xid came to. `follows` means that a 154 of this GPU decides, and nothing else closes the node."""

    care: Care
    says: str
    follows: bool = False


def load_link_rules(text: str) -> Tuple[LinkRule, ...]:
    """The rows of link_rules.json.

    :raises ValueError: it is not what this package was built with.
    """
    try:
        return tuple(_rule(raw) for raw in json.loads(text))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the table of NVLink errors is damaged: {error!r}; install fleetctl again") from error


def _rule(raw: Any) -> LinkRule:
    old, new = (tuple(int(word, 16) for word in raw[layout]) for layout in ("old", "new"))
    return LinkRule(
        int(raw["xid"]),
        tuple(raw["units"]),
        (old[0], old[1]),
        (new[0], new[1]),
        tuple(int(word, 16) for word in raw["status"]),
        raw["immediate"],
        raw["investigatory"],
    )


def judge_nvlink5(number: int, text: str, severity: Optional[str], rules: Sequence[LinkRule]) -> LinkFault:
    """What an Xid 144-150 asks for.

    The row of the table that fits decides. Where none does, the severity: Fatal asks for a reset, all else is watched.

    :param text: what follows the number, and the process where one is named.
    :param severity: what the reader of the log took it for; used where the text itself does not tell.
    """
    body = re.search(_BODY, text[-_MOST_CHARS:])
    if body is None:
        return _by_severity(_severity(text) or severity, "")
    unit, printed, link, words = body.groups()
    says = f"reports {_kind(printed)} NVLink error in {unit} on {_link(link)}"
    rule = _fitting(number, unit, [int(word, 16) for word in re.split("[ ,]+", words)], rules)
    if rule is None:
        return _by_severity(printed, says)
    if rule.immediate == "RESET_GPU":
        return LinkFault(Care.RESET, says)
    if rule.immediate == "XID_154_EVAL":
        return LinkFault(Care.APP, says, follows=True)
    nothing = rule.investigatory == "IGNORE" and not _fatal(printed)
    return LinkFault(Care.IGNORE if nothing else Care.WATCH, says)


def _fitting(number: int, unit: str, words: Sequence[int], rules: Sequence[LinkRule]) -> Optional[LinkRule]:
    """The row that fits. The layout need not be known: no first word fits rows of the printed unit in both."""
    info, status = words[0], words[1] if len(words) > 1 else None
    for rule in rules:
        known = rule.xid == number and unit in rule.units and (not rule.status or status in rule.status)
        if known and any(info & mask == value for mask, value in (rule.old, rule.new)):
            return rule
    return None


def _severity(text: str) -> Optional[str]:
    """The last such word: earlier ones may be a process's name."""
    found = re.findall(_SEVERITY, text[-_MOST_CHARS:])
    return found[-1] if found else None


def _by_severity(severity: Optional[str], says: str) -> LinkFault:
    says = says or f"reports {_kind(severity)} NVLink error"
    return LinkFault(Care.RESET if _fatal(severity) else Care.WATCH, says)


def _fatal(severity: Optional[str]) -> bool:
    return severity is not None and severity.lower() == "fatal"


def _kind(severity: Optional[str]) -> str:
    if severity is None:
        return "an"
    return "a fatal" if _fatal(severity) else "a non-fatal"


def _link(number: str) -> str:
    return "an unknown link" if int(number) < 0 else f"link {int(number)}"


def _bits(register: int, *bits: int) -> int:
    return sum(1 << 32 * register + bit for bit in bits)


# The seven registers of an Xid 74 as one number, register 1 in its lowest 32 bits, by what their bits mean. Bits that
# are in none of these are unknown: then the word "fatal" decides.
_READ = sum(0xFFFFFFFF << 32 * register for register in (0, 2, 3, 4))  # registers 1, 3, 4 and 5
_NOTHING = _bits(0, 0, 23, 30)
_GO_ON = _bits(4, 20, 23, 26, 29)  # a threshold was passed, nothing was lost
_SECONDARY = _bits(0, 1, 20) | _bits(3, 16, 17, 18)  # the echo of another fault, which is judged for itself
_IF_REPEATED = _bits(0, 27, 29) | _bits(2, 16, 17, 18, 19)
_RESET = (
    (_bits(0, 4, 5) | _bits(2, 0, 1, 2, 6) | _bits(4, 18, 19, 21, 22, 24, 25, 27, 28), "a parity error"),
    (_bits(0, 8, 9, 12, 16, 17, 24, 28), "a connection error"),
    (_bits(0, 21, 22), "a marginal signal"),
    (_bits(2, 13), "an error that should not be"),
)


def judge_nvlink(text: str, times: int) -> LinkFault:
    """What an Xid 74 asks for.

    :param times: how often this GPU reported one: some bits count only when they come again.
    """
    tail = text[-_MOST_CHARS:]
    fatal = "fatal error" in tail.lower() and "non-fatal" not in tail.lower()
    named = re.findall(_LINK, tail)
    where = f" on link {int(named[-1][:4])}" if named else ""
    plain = f"reports {'a fatal' if fatal else 'an'} NVLink error{where}"
    found = re.search(_REGISTERS, tail)
    if found is None:
        return LinkFault(Care.RESET if fatal else Care.WATCH, plain)
    words = re.split("[ ,]+", found.group(1))
    registers = sum(int(word, 16) << 32 * at for at, word in enumerate(words))
    return _by_registers(registers & _READ, times, plain, fatal)


def _by_registers(registers: int, times: int, plain: str, fatal: bool) -> LinkFault:
    for mask, what in _RESET:
        if registers & mask:
            return LinkFault(Care.RESET, f"{plain}, {what}")
    watched = _GO_ON | _SECONDARY | _IF_REPEATED
    if registers & ~(watched | _NOTHING) or not registers:
        return LinkFault(Care.RESET if fatal else Care.WATCH, plain)
    if times >= REPEATED and registers & _IF_REPEATED:
        return LinkFault(Care.RESET, f"{plain} again and again")
    return LinkFault(Care.WATCH if registers & watched else Care.IGNORE, plain)
