"""The kernel log read with a cursor, from files, FIFOs and a device that loses records."""

from __future__ import annotations

import errno
import os
import tracemalloc
from pathlib import Path

import pytest

from fleetctl.health import kernel_collect, kernel_log
from fleetctl.health.kernel_fold import LEAST_ROOM, merge_events
from fleetctl.health.kernel_lines import parse_line
from fleetctl.health.kernel_log import read_kernel_log
from fleetctl.health.model import Event, EventKind
from tests.unit.health.kmsg import LOST_GPU, NULL, UNREAD, Counted, Device, log_of, read, xid
from tests.unit.health.trees import record, records

RECORDED = Path(__file__).parents[2] / "recorded/kmsg"
SXID = "nvidia-nvswitch0: SXid (PCI:0000:{}:00.0): {}, Fatal, Link {} LTSSM Fault Up"
STORM = "NVRM: Xid (PCI:0000:1b:00): 95, pid={}, name=python, Uncontained: LTC TAG (0x{:x}, 0x1). RST: Yes"

NETIR = "NETIR Fatal XC0 i0 Link"


def test_the_first_look_reads_all_and_the_next_one_what_came_since(tmp_path: Path) -> None:
    log = log_of(tmp_path / "kmsg", records({5: xid(31), 6: "usb 1-1: new device", 7: xid(48)}))

    events, sequence = read(log)
    assert [(event.sequence, event.number, event.at_s) for event in events] == [(5, 31, 0.005), (7, 48, 0.007)]
    assert sequence == 7
    assert read(log, sequence) == ((), 7)
    with log.open("a") as more:
        more.write(record(8, xid(63)))
    assert [event.number for event in read(log, sequence)[0]] == [63]


def test_a_record_that_a_program_wrote_is_not_the_kernels(tmp_path: Path) -> None:
    log = log_of(tmp_path / "kmsg", record(1, LOST_GPU, facility=1) + record(2, LOST_GPU, facility=3))

    assert read(log) == ((), 2)


def test_continuation_lines_are_no_records(tmp_path: Path) -> None:
    text = record(1, xid(31)) + f" SUBSYSTEM=pci\n DEVICE=3,9,9,-;{LOST_GPU}\n" + record(2, xid(48))

    assert [event.number for event in read(log_of(tmp_path / "kmsg", text))[0]] == [31, 48]


@pytest.mark.parametrize("storm", ["one text", "other numbers each time", "a few texts"])
def test_a_storm_is_one_event_and_does_not_hide_what_follows(tmp_path: Path, storm: str) -> None:
    lines = 20_000
    log = tmp_path / "kmsg"
    with log.open("w") as out:
        for at in range(lines):
            pid, value = {"one text": (7, 1), "other numbers each time": (at, at)}.get(storm, (7, at % 29))
            out.write(record(at, STORM.format(pid, value)))
        out.write(record(lines, LOST_GPU))

    events, sequence = read(log)

    assert [(event.number, event.count, event.pci) for event in events] == [
        (95, lines, "0000:1b:00"),
        (79, 1, "0000:9b:00"),
    ]
    assert (events[0].at_s, events[0].last_s) == (0.0, (lines - 1) / 1000)
    assert sequence == lines


def test_a_storm_of_different_texts_is_bounded_and_loses_no_count_and_no_gpu(tmp_path: Path) -> None:
    lines = 6000
    log = tmp_path / "kmsg"
    with log.open("w") as out:
        for at in range(lines):
            name = "".join(chr(97 + int(digit)) for digit in str(at))
            out.write(record(at, f"Out of memory: Killed process 1 ({name}) total-vm:1kB"))
        out.write(record(lines, LOST_GPU))

    events, _ = read(log, most=50)

    assert len(events) <= 50
    assert sum(event.count for event in events) == lines + 1
    assert (EventKind.XID, "0000:9b:00", 79) in {(event.kind, event.pci, event.number) for event in events}


@pytest.mark.parametrize(
    ("first", "second", "folded"),
    [
        (xid(94, text="Ch 00000008"), xid(94, text="Ch 0000000b"), True),
        (xid(63, text="Row (0x00000002eebc4100)"), xid(63, text="Row (0x1)"), True),
        (xid(31), xid(31, bus=0x1C), False),
        (xid(31), xid(13), False),
        (xid(74, text="NVLink: (0x0, 0x1)"), xid(74, text="NVLink: (0x0, 0x2)"), False),
        (xid(149, text=f"{NETIR} 01 (0x1 0x2 0x3)"), xid(149, text=f"{NETIR} 01 (0x1 0x2 0x4)"), True),
        (xid(149, text=f"{NETIR} 01 (0x1 0x2 0x3)"), xid(149, text=f"{NETIR} 01 (0x1 0x3 0x3)"), False),
        (xid(149, text=f"{NETIR} 01 (0x1 0x2)"), xid(149, text=f"{NETIR} 02 (0x1 0x2)"), False),
        (xid(154, text="from 0x0 (None) to 0x1 (Reset)"), xid(154, text="from 0x1 (Reset) to 0x0 (None)"), False),
        ("nvme nvme0: Device not ready", "nvme nvme1: Device not ready", False),
        (SXID.format(10, 20034, 30), SXID.format(10, 20034, 31), True),
        (SXID.format(10, 20034, 30), SXID.format(18, 20034, 30), False),
        (SXID.format(10, 20034, 30), SXID.format(10, 20035, 30), False),
        ("mlx5_core 0000:10:00.0: Fatal error 1 detected", "mlx5_core 0000:10:00.0: Fatal error 2 detected", True),
        ("mlx5_core 0000:10:00.0: Fatal error 1 detected", "mlx5_core 0000:18:00.0: Fatal error 1 detected", False),
        ("EXT4-fs (sda1): Remounting filesystem read-only", "EXT4-fs (sdb1): Remounting filesystem read-only", False),
    ],
)  # fmt: skip
def test_what_is_the_same_fault(tmp_path: Path, first: str, second: str, folded: bool) -> None:
    events, _ = read(log_of(tmp_path / "kmsg", records({1: first, 2: second})))

    assert [event.count for event in events] == ([2] if folded else [1, 1])


def test_fallen_off_the_bus_is_found_in_one_record_and_in_three(tmp_path: Path) -> None:
    one = (
        "NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\\x0a"
        "NVRM: fallen off the bus and is not responding to commands."
    )
    three = one.replace("b3", "05").split("\\x0a")
    other = one.replace("b3", "06").split("\\x0a")
    log = log_of(tmp_path / "kmsg", records(dict(enumerate([one, *three, *other, "usb", "usb", "usb", three[2]]))))

    events, _ = read(log)

    kinds = [(event.kind, event.pci, event.number) for event in events]
    assert kinds == [(EventKind.OFF_THE_BUS, pci, None) for pci in ("0000:b3:00", "0000:05:00", "0000:06:00", None)]


def test_the_lines_of_one_sxid_are_one_event() -> None:
    events, _ = read(RECORDED / "nvidia.kmsg", after=129)

    assert [(event.number, event.severity, event.count) for event in events] == [
        (12028, "Non-fatal", 1),
        (22013, "Non-fatal", 1),
        (20034, "Fatal", 1),
    ]


def test_records_that_were_overwritten_before_we_read_them_are_counted(tmp_path: Path) -> None:
    events, sequence = read(log_of(tmp_path / "kmsg", records({500: "usb", 501: "usb"})), after=99)

    assert [(event.kind, event.count) for event in events] == [(EventKind.LOST, 400)]
    assert sequence == 501


def test_what_was_overwritten_before_the_first_look_is_not_ours(tmp_path: Path) -> None:
    assert read(log_of(tmp_path / "kmsg", records({500: "usb"})), after=None) == ((), 500)


def test_a_record_half_written_is_left_for_the_next_look(tmp_path: Path) -> None:
    whole = record(1, xid(31)) + record(2, LOST_GPU)
    log = tmp_path / "kmsg"
    for cut in range(len(record(1, xid(31))), len(whole)):
        log.write_text(whole[:cut])
        events, sequence = read(log)
        assert ([event.number for event in events], sequence) == ([31], 1)


def test_a_fifo_is_read_without_waiting(tmp_path: Path) -> None:
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    assert read(fifo, 3) == ((), 3)  # nobody writes

    writer = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(writer, record(4, xid(48)).encode())
        events, sequence = read(fifo, 3)  # the writer is still there: EAGAIN
    finally:
        os.close(writer)
    assert ([event.number for event in events], sequence) == ([48], 4)


def test_registers_that_were_refused_to_us_are_no_events_and_cost_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "mlx5_core 0000:5d:00.0: mlx5_cmd_out_err:808:(pid {}): ACCESS_REG(0x805) op_mod(0x1) failed, status bad"
    monkeypatch.setattr(kernel_collect, "parse_line", None)
    Device(*(record(at, line.format(at)).encode() for at in range(100))).instead_of_null(monkeypatch)

    assert read(NULL) == ((), 99)


@pytest.mark.parametrize(
    "form",
    [
        "mlx5_core 0000:5d:00.0: Port module event[error]: module {0}, Cable error, number {0}",
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link {0:02} egress (0x{0:x})",
        "EDAC MC0: 1 CE memory read error (page:0x{0:x} offset:0x0)",
        "blk_update_request: I/O error, dev nvme0n1, sector {0} op 0x0:(READ)",
        "Memory failure: 0x{0:x}: recovery action for dirty page",
    ],
)
def test_a_storm_of_any_kind_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    parsed = Counted(parse_line)
    monkeypatch.setattr(kernel_collect, "parse_line", parsed)
    log = log_of(tmp_path / "kmsg", records({at: form.format(at + 1) for at in range(3000)}))

    (event,) = read(log)[0]

    assert event.count == 3000
    assert parsed.calls == 1


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("missing", errno.ENOENT),
        ("a folder", errno.EISDIR),
        ("a loop", errno.ELOOP),
        ("a name that cannot be", errno.EINVAL),
    ],
)
def test_a_log_that_cannot_be_read_says_why(tmp_path: Path, what: str, cause: int) -> None:
    path = {"a folder": str(tmp_path), "a name that cannot be": "/a\x00b"}.get(what, str(tmp_path / "kmsg"))
    if what == "a loop":
        os.symlink("kmsg", tmp_path / "kmsg")

    with pytest.raises(OSError) as refused:  # noqa: PT011 - its number says which
        read_kernel_log(path, 17, 64)
    assert refused.value.errno == cause


@pytest.mark.parametrize(
    "data", [b"", b"\x00" * 300_000, b"\xff\n" * 9999, b"x" * 300_000 + b"\n", b"\n" * 9999, b";" * 99]
)
def test_a_log_of_nonsense_has_no_events(tmp_path: Path, data: bytes) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(data + b"\n" + record(3, LOST_GPU).encode())

    events, sequence = read(log)

    assert ([event.number for event in events], sequence) == ([79], 3)


def test_an_endless_line_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "MOST_BYTES", 4 * 1024 * 1024)
    tracemalloc.start()
    try:
        events, sequence = read_kernel_log("/dev/zero", 9, 64)
        assert ([event.text for event in events], sequence) == ([UNREAD.format("it is too long")], 9)
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


def event(sequence: int, number: int, *, told: bool = False, text: str = "x", bus: int = 1) -> Event:
    at_s = float(sequence)
    return Event(sequence, at_s, at_s, EventKind.XID, f"0000:{bus:02x}:00", number, text, told=told)


def test_a_fault_that_comes_again_after_a_drain_named_it_is_a_new_one() -> None:
    merged = merge_events([event(1, 48, told=True)], [event(9, 48), event(10, 48)], 64)

    assert [(e.sequence, e.count, e.told, e.last_s) for e in merged] == [(1, 1, True, 1.0), (9, 2, False, 10.0)]


def test_merging_keeps_the_first_line_and_when_it_came_last() -> None:
    (merged,) = merge_events([event(1, 94, text="Ch 1")], [event(5, 94, text="Ch 2")], 64)

    assert (merged.sequence, merged.at_s, merged.last_s, merged.text, merged.count) == (1, 1.0, 5.0, "Ch 1", 2)


def test_of_too_many_texts_of_one_xid_the_latest_is_kept() -> None:
    words = "abcdefghijklmnopqrstuvwxyz"
    many = [event(at, 154, text=f"{words[at // 26]}{words[at % 26]}") for at in range(500)]

    (merged,) = merge_events(many, (), 64)

    assert (merged.count, merged.text) == (500, many[-1].text)


def test_of_too_many_parts_the_worst_stay_apart() -> None:
    noise = [Event(at, 0.0, 0.0, EventKind.NVME, f"{at:04x}:01:00", None, "x") for at in range(500)]
    gone = [Event(900 + at, 0.0, 0.0, EventKind.OFF_THE_BUS, f"0000:{at:02x}:00", None, "x") for at in range(8)]

    merged = merge_events(noise, gone, 1)

    assert len(merged) <= LEAST_ROOM
    assert set(gone) <= set(merged)
    assert sum(e.count for e in merged) == 508
