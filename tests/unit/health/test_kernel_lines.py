"""What one record of the kernel log tells of."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.health.kernel_lines import MOST_TEXT, Line, decode, is_of_interest, parse_line, split_record
from fleetctl.health.model import EventKind

RECORDED = Path(__file__).parents[2] / "recorded/kmsg"
XID = "NVRM: Xid (PCI:0000:1b:00): "


def recorded(name: str) -> dict[int, Line | None]:
    """Sequence -> what its record tells of."""
    found: dict[int, Line | None] = {}
    for raw in (RECORDED / name).read_bytes().splitlines():
        record = split_record(raw)
        if record is not None:
            found[record[1]] = parse_line(decode(record[3])) if is_of_interest(record[3]) else None
    return found


def line(text: str) -> Line:
    found = parse_line(text)
    assert found is not None, text
    return found


def test_every_recorded_line_of_nvidias_drivers_is_understood() -> None:
    found = recorded("nvidia.kmsg")

    assert {s: (e.pci, e.number) for s, e in found.items() if e is not None and e.kind is EventKind.XID} == {
        102: ("0000:0f:00", 64),
        103: ("0000:0f:00", 94),
        104: ("0000:cb:00", 13),
        105: ("0000:cb:00", 13),
        106: ("0000:cb:00", 109),
        107: ("0000:3b:00", 119),
        108: ("0000:3b:00", 94),
        109: ("0000:3b:00", 95),
        110: ("0000:3b:00", 43),
        111: ("0000:dc:00", 45),
        112: ("0019:01:00", 149),
        113: ("0000:00:00", 149),
        114: ("0018:01:00", 145),
        115: ("0018:01:00", 145),
        116: ("0018:01:00", 137),
        117: ("0000:18:00", 154),
        118: ("0000:9b:00", 79),
        119: ("0000:9c:00", 79),
        121: ("0000:9b:00", 74),
        122: ("0000:9b:00", 63),
        123: ("0000:01:00", 13),
        124: ("0000:01:00", 31),
        125: ("0000:03:00", 14),
    }
    assert {s: (e.kind, e.pci) for s, e in found.items() if e is not None and e.kind is EventKind.OFF_THE_BUS} == {
        120: (EventKind.OFF_THE_BUS, "0000:9b:00"),
        126: (EventKind.OFF_THE_BUS, "0000:b3:00"),
        129: (EventKind.OFF_THE_BUS, None),
    }
    assert {s: (e.pci, e.number, e.severity) for s, e in found.items() if e is not None and s >= 130} == {
        130: ("0000:85:00", 12028, "Non-fatal"),
        132: ("0000:04:00", 22013, "Non-fatal"),
        134: ("0000:05:00", 20034, "Fatal"),
    }
    assert [s for s, e in found.items() if e is None] == [100, 101, 127, 128, 131, 133]


def test_every_recorded_line_of_the_kernel_is_understood_or_left_alone() -> None:
    found = recorded("kernel.kmsg")

    kinds = {s: e.kind.value for s, e in found.items() if e is not None}
    assert kinds == {
        **dict.fromkeys((2, 3, 4, 5, 7), "nic"),
        **dict.fromkeys((8, 9, 11, 12, 15, 16), "nvme"),
        **dict.fromkeys((19, 20, 22), "read_only"),
        **dict.fromkeys((24, 25, 26, 27, 28), "stuck"),
        **dict.fromkeys((29, 30, 32, 34, 35, 36, 37), "memory"),
        **dict.fromkeys((39, 40), "oom"),
    }
    severities = {s: e.severity for s, e in found.items() if e is not None and e.severity is not None}
    assert severities == {
        3: "Fatal",
        **dict.fromkeys((30, 34, 36), "Corrected"),
        **dict.fromkeys((32, 35, 37), "Uncorrected"),
    }
    assert {s: e.pci for s, e in found.items() if e is not None and e.pci is not None} == {
        2: "0000:41:00",
        3: "0000:41:00",
        4: "0000:0b:00",
        5: "0000:0b:00",
        7: "0000:5c:00",
    }
    names = {s: e.process for s, e in found.items() if e is not None and e.process is not None}
    assert names == {24: "nvidia-smi", 39: "leaker", 40: "python3"}


@pytest.mark.parametrize(
    ("head", "pci"),
    [
        ("(PCI:0000:1b:00)", "0000:1b:00"),
        ("(PCI:00000000:1B:00)", "0000:1b:00"),
        ("(PCI:0008:01:00)", "0008:01:00"),
        ("(PCI:00010000:e1:00)", "10000:e1:00"),
        ("(PCI:0000:1b:00.0)", "0000:1b:00"),
        ("(0000:03:00)", "0000:03:00"),
        ("(PCI:0000:01:00 GPU-I:05)", "0000:01:00"),
        ("(PCI:0000:01:00 GPU-I:05 GPU-CI:00)", "0000:01:00"),
    ],
)
@pytest.mark.parametrize(
    ("body", "process", "text"),
    [
        ("31, pid=78, name=a.out, Ch 00000011, MMU Fault", "a.out", "Ch 00000011, MMU Fault"),
        ("31, pid='<unknown>', name=<unknown>, Ch 00000011", None, "Ch 00000011"),
        ("31, pid=<unknown>, name=<unknown>, Ch 00000011", None, "Ch 00000011"),
        ("31, Ch 00000011", None, "Ch 00000011"),
        ("31, pid=78, name=my prog, Ch 00000011", "my prog", "Ch 00000011"),
        ("31", None, ""),
    ],
)
def test_all_forms_of_an_xid(head: str, pci: str, body: str, process: str | None, text: str) -> None:
    assert line(f"NVRM: Xid {head}: {body}") == Line(EventKind.XID, pci, 31, text, process)


@pytest.mark.parametrize(
    ("rest", "severity"),
    [
        ("NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)", "Fatal"),
        ("NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)", "Fatal"),
        ("pid=1, name=python, RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 (0x1 0x4)", "Nonfatal"),
        ("RLW_RXPIPE Non-fatal XC0 i0 Link 13 (0x1 0x2)", "Nonfatal"),
        ("pid=1, name=x Fatal, NETIR Nonfatal XC0 i0 Link 01 (0x1 0x2)", "Nonfatal"),
        ("something Fatal happened", None),
    ],
)
@pytest.mark.parametrize("number", [144, 150])
def test_of_the_newer_nvlink_errors_the_severity_is_read_from_its_place(
    number: int, rest: str, severity: str | None
) -> None:
    assert line(f"{XID}{number}, {rest}").severity == severity


@pytest.mark.parametrize(
    "name",
    [
        "Xid 79",
        "79",
        "x, 79",
        "NVRM: Xid (PCI:",
        "): 79, GPU has",
        "fallen off",
        "a\nNVRM: Xid",
        "pid=1154",
        ", name=",
        "",
    ],
)
def test_a_process_cannot_name_itself_into_another_fault(name: str) -> None:
    found = line(f"{XID}31, pid=77, name={name}, Ch 00000011, MMU Fault")

    assert (found.kind, found.pci, found.number) == (EventKind.XID, "0000:1b:00", 31)


@pytest.mark.parametrize(
    "text",
    [
        "INFO: task NVRM: Xid (PCI:0000:1b:00): 79:123 blocked for more than 122 seconds.",
        "Out of memory: Killed process 1 (NVRM: Xid (PCI) total-vm:1kB",
        "watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [fallen off the b:905]",
    ],
)
def test_a_fault_in_the_name_of_a_process_is_none_of_the_gpu(text: str) -> None:
    assert line(text).kind in (EventKind.STUCK, EventKind.OOM)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06",
        "NVRM: Xid",
        "NVRM: Xid (PCI:0000:1b:00): ",
        "NVRM: Xid (PCI:0000:1b:00): x, 79",
        "NVRM: Xid (PCI:xxxx:1b:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:1b:00): 12345678901, x",
        " NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        "user: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
        "python[1]: GPU has fallen off the bus",
        "nvidia-nvswitch3: open (major=510)",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
        "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1234)\nNVRM: installed in this system is not supported",
        "mlx5_core 0000:41:00.0 eth0: Link up",
        "nvme nvme0: 128/0/0 default/read/poll queues",
        "EXT4-fs (sda1): re-mounted. Opts: errors=remount-ro",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode",
        "INFO: lockdep is turned off.",
        "Memory: 2113421312K/2147483648K available",
        "EDAC MC0: Giving out device to module skx_edac controller",
        "BUG: unable to handle page fault for address: 0000",
        "mce: CPU0: Thermal monitoring enabled (TM1)",
        "{1}[Hardware Error]:  section_type: memory error",
    ],
)
def test_what_is_no_fault_is_none(text: str) -> None:
    assert parse_line(text) is None


@pytest.mark.parametrize(
    "text", [XID + "31, " + "x" * 9999, "\x00" * 9999, XID + "31, \x1b[31m\r\n\u202e\udcff", "EDAC" * 999]
)
def test_a_text_is_one_short_line_that_can_be_printed(text: str) -> None:
    found = parse_line(text)

    assert found is None or (len(found.text) <= MOST_TEXT and found.text.isprintable() and found.text.isascii())


@pytest.mark.parametrize(
    ("raw", "record"),
    [
        (b"6,1234,567890,-;text", (0, 1234, 0.56789, b"text")),
        (b"14,1,0,-,caller=T1;a;b", (1, 1, 0.0, b"a;b")),
        (b"30,7,1000000,c;x", (3, 7, 1.0, b"x")),
        (b"6,1,2,-;", (0, 1, 2e-06, b"")),
        *(
            (raw, None)
            for raw in (b"", b" SUBSYSTEM=pci", b"6,1,2;x", b"6,1,2,-", b"-6,1,2,-;x", b"6,x,2,-;x", b";;;;")
        ),
        *((raw, None) for raw in (b"6," + b"9" * 5000 + b",2,-;x", "6,\u0661,2,-;x".encode(), b"\xff\xfe,1,2,-;x")),
    ],
)
def test_a_record_is_taken_apart_or_is_none(raw: bytes, record: tuple[int, int, float, bytes] | None) -> None:
    assert split_record(raw) == record


@pytest.mark.parametrize(
    ("raw", "text"),
    [(b"a\\x0ab", "a\nb"), (b"a\\x5cx0ab", "a\\x0ab"), (b"plain", "plain"), (b"\\xzz", "\\xzz"), (b"\xff", "\ufffd")],
)
def test_escapes_are_undone_once(raw: bytes, text: str) -> None:
    """A program that writes `\\x0a` itself gets `\\x5cx0a`."""
    assert decode(raw) == text
