"""One record of the kernel log in, one fault out. Pure.

Only how a text begins decides what it is: what follows may hold the name of a process, and a process may call itself
`Xid 79`. The forms are those of NVIDIA's open kernel modules (kernel_rc.c, nv.c, the NVSwitch driver) and of the
kernel's own sources (mlx5 events.c and health.c, nvme pci.c and core.c, ext4 super.c, xfs_fsops.c, hung_task.c,
watchdog.c, mce, ghes, edac_mc.c, oom_kill.c). A pattern is compiled when a line of its kind comes by: never on a
healthy node.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, Match, Optional, Sequence, Tuple

from fleetctl.health.model import EventKind
from fleetctl.health.record import NamedTuple


class Line(NamedTuple):
    """One fault that one record tells of. The fields are those of model.Event.

    `text` of an Xid is what follows its number, pid and name. `severity`, beside what model.Event says: MEMORY
    "Corrected" or "Uncorrected", NIC "Fatal" where the card's firmware is gone.
    """

    kind: EventKind
    pci: Optional[str]
    number: Optional[int]
    text: str
    process: Optional[str] = None
    severity: Optional[str] = None


# Longer texts say nothing more, and the kernel cuts a record at 1 KiB or 2 KiB.
MOST_TEXT = 300
_MOST_READ = 4096
# Prefix, sequence, microseconds, flag, perhaps `caller=T123`.
_MOST_HEAD = 128

_PCI = r"(?P<domain>[0-9a-fA-F]{4,8}):(?P<bus>[0-9a-fA-F]{2}):(?P<device>[0-9a-fA-F]{2})"
# `PCI:` is missing in old drivers; MIG adds ` GPU-I:05 GPU-CI:00`; there is no function.
_XID = (
    r"NVRM:\s+Xid \((?:PCI:)?" + _PCI + r"(?:\.[0-7])?(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\):\s+(?P<number>\d{1,6})"
    r"(?:, pid=(?:'?<unknown>'?|\d+))?(?:, name=(?P<name>.*?))?(?:,\s*(?P<rest>.*))?$"
)
# The body of Xid 144 to 150: the unit, then how bad it is.
_NVLINK5 = r"\b[A-Za-z0-9_/]{1,40}\s{1,20}(Fatal|Non-?fatal)\s{1,20}XC ?\d\s{1,20}i ?\d\s{1,20}Link\s"
_SXID = r"nvidia-nvswitch\d+: SXid \(PCI:" + _PCI + r"(?:\.[0-7])?\): (?P<number>\d{1,6}), (?P<rest>.*)$"
# One SXid is told in two to four lines, of which one has its severity and words; these are the others.
_SXID_MORE = r"(?:Data \{|Severity \d|Engine instance)"
_SXID_SEVERITY = r"(Fatal|Non-fatal|Correctable)\b"
_DEVICE = r"(?:mlx5_core|nvme) " + _PCI + r"\.[0-7]\b"
_KILLED = r"(?:Memory cgroup out of memory|Out of memory)[^:]*: Kill(?:ed)? process \d+ \((?P<name>.*?)\)(?: |,|$)"
_HUNG = r"INFO: task (?P<name>.*):\d+ (?:<[^>]*> )?blocked (?:.* )?for more than \d+ seconds"
_LOCKED = r"(?:NMI |)(?:watchdog: |)(?:BUG: soft lockup - CPU#|(?:CPU ?\d+: |)Watchdog detected hard LOCKUP)"
_STALLED = r"(?:rcu: |)INFO: rcu_\w+ (?:self-)?detected (?:expedited )?stall"

_NIC_FATAL = (
    "health compromised",
    "Fatal error",
    "unrecoverable",
    "firmware internal error",
    "cause a leak of a command",
)
_NIC = (
    *_NIC_FATAL,
    "insufficient power",
    "igh temperature",
    "igh Temperature",
    "Port module event[error]",
    "ACCESS_REG(",
)
_NVME = (
    "controller is down",
    "Device not ready",
    "Disabling device after reset failure",
    "Removing after probe failure",
    "timeout, reset controller",
    "timeout, disable controller",
    "timeout, aborting",
    "I/O Error (",
)
_DISK = ("I/O error, dev nvme", "critical medium error, dev nvme", "critical target error, dev nvme")
# ext4 and its forebears, nilfs; XFS shuts down where others go read-only; btrfs; FAT.
_READ_ONLY = (
    "Remounting filesystem read-only",
    "remounting filesystem read-only",
    "Please unmount the filesystem and rectify",
    "forced readonly",
    "set read-only",
)
_MACHINE_CHECK = (
    "Machine check events logged",
    "Machine Check",
    "Corrected error",
    "Uncorrected",
    "Deferred error",
    "event severity:",
)


def parse_line(text: str) -> Optional[Line]:
    """The fault that the text of one record tells of, or None. `text` is decoded: `\\x0a` is a line feed."""
    read = _READERS.get(text[:4])
    if read is None:
        read = _apei if text[:1] == "{" else None
    return None if read is None else read(text[:_MOST_READ])


def names_gpu(text: str) -> Optional[str]:
    """The GPU that the first of the three lines of "fallen off the bus" names, where they are three records."""
    found = re.match(r"NVRM: The NVIDIA GPU " + _PCI, text)
    return None if found is None else _pci(found)


def _nvrm(text: str) -> Optional[Line]:
    if text.startswith("NVRM: Xid"):
        return _xid(text)
    if "fallen off the bus" not in text:
        return None
    found = re.search(r"\b" + _PCI + r"\b", text)
    return Line(EventKind.OFF_THE_BUS, None if found is None else _pci(found), None, _clean(text))


def _xid(text: str) -> Optional[Line]:
    found = re.match(_XID, text, re.DOTALL)
    if found is None:
        return None
    name, rest = found["name"], found["rest"] or ""
    body = re.search(_NVLINK5, rest) if 144 <= int(found["number"]) <= 150 else None
    return Line(
        EventKind.XID,
        _pci(found),
        int(found["number"]),
        _clean(rest),
        None if name in (None, "<unknown>", "'<unknown>'") else _clean(name),
        None if body is None else body[1].replace("-", ""),
    )


def _sxid(text: str) -> Optional[Line]:
    found = re.match(_SXID, text, re.DOTALL)
    if found is None or re.match(_SXID_MORE, found["rest"]):
        return None
    severity = re.match(_SXID_SEVERITY, found["rest"])
    return Line(
        EventKind.SXID,
        _pci(found),
        int(found["number"]),
        _clean(found["rest"]),
        severity=None if severity is None else severity[1],
    )


def _nic(text: str) -> Optional[Line]:
    if not any(words in text for words in _NIC):
        return None
    fatal = any(words in text for words in _NIC_FATAL)
    return Line(EventKind.NIC, _pci_of_device(text), None, _clean(text), severity="Fatal" if fatal else None)


def _nvme(text: str) -> Optional[Line]:
    if any(words in text for words in _NVME):
        return Line(EventKind.NVME, _pci_of_device(text), None, _clean(text))
    return None


def _disk(text: str) -> Optional[Line]:
    """Of the block layer: `blk_update_request: I/O error, dev nvme0n1, sector ...`, newer without its name."""
    if text.replace("blk_update_request: ", "", 1).startswith(_DISK):
        return Line(EventKind.NVME, None, None, _clean(text))
    return None


def _file_system(text: str) -> Optional[Line]:
    if any(words in text for words in _READ_ONLY) or text.startswith("Aborting journal on device"):
        return Line(EventKind.READ_ONLY, None, None, _clean(text))
    return None


def _stuck(text: str) -> Optional[Line]:
    found = re.match(_HUNG, text, re.DOTALL)
    if found is not None:
        return Line(EventKind.STUCK, None, None, _clean(text), _clean(found["name"]))
    if re.match(_LOCKED, text) or re.match(_STALLED, text):
        return Line(EventKind.STUCK, None, None, _clean(text))
    return None


def _machine_check(text: str) -> Optional[Line]:
    if any(words in text for words in _MACHINE_CHECK):
        return Line(EventKind.MEMORY, None, None, _clean(text), severity=_how_bad(text))
    return None


def _apei(text: str) -> Optional[Line]:
    """Firmware's word, several lines for one error: `{1}[Hardware Error]: event severity: corrected` is the one."""
    if re.match(r"\{\d+\}\[Hardware Error\]: event severity: ", text):
        return Line(EventKind.MEMORY, None, None, _clean(text), severity=_how_bad(text))
    return None


def _edac(text: str) -> Optional[Line]:
    found = re.match(r"EDAC MC\d+: \d+ (CE|UE) ", text)
    if found is None:
        return None
    severity = "Corrected" if found[1] == "CE" else "Uncorrected"
    return Line(EventKind.MEMORY, None, None, _clean(text), severity=severity)


def _memory(text: str) -> Optional[Line]:
    if text.startswith("Memory failure: 0x"):
        return Line(EventKind.MEMORY, None, None, _clean(text), severity="Uncorrected")
    return _oom(text)


def _oom(text: str) -> Optional[Line]:
    found = re.match(_KILLED, text, re.DOTALL)
    return None if found is None else Line(EventKind.OOM, None, None, _clean(text), _clean(found["name"]))


def _how_bad(text: str) -> Optional[str]:
    if any(words in text for words in ("Uncorrected", "recoverable", "fatal", "Machine Check Exception")):
        return "Uncorrected"
    return "Corrected" if "orrected" in text else None


def _pci(found: Match[str]) -> str:
    """As model.Event writes it: `0000:1b:00`, a domain of eight digits made short, lower case, no function."""
    return "{:04x}:{}:{}".format(int(found["domain"], 16), found["bus"].lower(), found["device"].lower())


def _pci_of_device(text: str) -> Optional[str]:
    found = re.match(_DEVICE, text)
    return None if found is None else _pci(found)


def _clean(text: str) -> str:
    """One line of printable ASCII: it may go into a drain reason, and holds what a process calls itself."""
    shown = "".join(c if " " <= c <= "~" else " " if c.isspace() else "?" for c in text[: MOST_TEXT * 2])
    return " ".join(shown.split())[:MOST_TEXT]


# The first four characters of a record -> who reads it. One look-up for each record that is of no interest.
_READERS: Dict[str, Callable[[str], Optional[Line]]] = {
    "NVRM": _nvrm,
    "nvid": _sxid,
    "mlx5": _nic,
    "nvme": _nvme,
    "EDAC": _edac,
    "Memo": _memory,
    "Out ": _oom,
    **dict.fromkeys(("blk_", "I/O ", "crit"), _disk),
    **dict.fromkeys(("EXT2", "EXT3", "EXT4", "XFS ", "BTRF", "F2FS", "FAT-", "NILF", "Remo", "Abor"), _file_system),
    **dict.fromkeys(("INFO", "BUG:", "watc", "Watc", "NMI ", "rcu:"), _stuck),
    **dict.fromkeys(("mce:", "MCE:", "[Har"), _machine_check),
}
# The same as bytes, for the reader of the log.
STARTS = frozenset(start.encode("ascii") for start in _READERS)


def is_of_interest(text: bytes) -> bool:
    """Whether parse_line may find something in a record that begins so: cheap."""
    return text[:4] in STARTS or text[:1] == b"{"


def is_noise(text: bytes) -> bool:
    """Whether a record says, of a card, that counters of a port were read that a fabric manager owns: each read of one
    writes such a record (node_exporter#3434), and it means nothing."""
    return text[:4] == b"mlx5" and b"ACCESS_REG(" in text and b") failed, status" in text


def newest_of(lines: Sequence[bytes]) -> Optional[int]:
    """The number of the last record among some lines."""
    for line in reversed(lines):
        record = split_record(line)
        if record is not None:
            return record[1]
    return None


def decode(text: bytes) -> str:
    """The text as the kernel had it: /dev/kmsg escapes a line feed as `\\x0a`, and a `\\` itself as `\\x5c`."""
    plain = text.decode("utf-8", "replace")
    if "\\x" not in plain:
        return plain
    return re.sub(r"\\x([0-9a-fA-F]{2})", lambda found: chr(int(found[1], 16)), plain)


def split_record(line: bytes) -> Optional[Tuple[int, int, float, bytes]]:
    """Facility, sequence, seconds since boot and text of `6,1234,567890,-;text`, or None."""
    head, semicolon, text = line.partition(b";")
    fields = head.split(b",")
    if not semicolon or len(fields) < 4 or len(head) > _MOST_HEAD:
        return None
    if not (fields[0].isdigit() and fields[1].isdigit() and fields[2].isdigit()):
        return None  # a continuation line ` KEY=value` begins with a space
    return int(fields[0]) >> 3, int(fields[1]), int(fields[2]) / 1e6, text
