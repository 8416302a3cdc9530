"""Whatever the kernel log holds: reading never fails, loses no count, and reads nothing twice."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.health.kernel_fold import LEAST_ROOM, fold_key, merge_events, same_but_numbers
from fleetctl.health.kernel_lines import decode, parse_line, split_record
from fleetctl.health.kernel_log import read_kernel_log
from fleetctl.health.model import Event, EventKind

STARTS = (
    "NVRM: Xid (PCI:0000:1b:00): ", "NVRM: Xid (", "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus", "NVRM: ",
    "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): ", "mlx5_core 0000:18:00.0: Fatal error ",
    "nvme nvme0: controller is down", "EXT4-fs (sda1): Remounting filesystem read-only", "INFO: task ",
    "watchdog: BUG: soft lockup - CPU#", "EDAC MC0: 1 UE ",
    "Out of memory: Killed process 1 (", "mce: [Hardware Error]: ", "{1}[Hardware Error]: event severity: ", "",
)  # fmt: skip
words = st.sampled_from(
    [
        "79",
        ", ",
        "pid=1, name=",
        "GPU-I:05",
        "Fatal",
        "NETIR Fatal XC0 i0 Link 01 (0x1 0x2)",
        "Link 3 ",
        "\n",
        "(",
        "):",
    ]
)
texts = st.builds(
    lambda start, rest: start + "".join(rest), st.sampled_from(STARTS), st.lists(words | st.text(max_size=9))
)

# Faults with few differences, so that they fold: (number, text).
faults = st.builds(
    lambda bus, number, name, text: f"NVRM: Xid (PCI:0000:{bus}:00): {number}, pid={len(name)}, name={name}, {text}",
    st.sampled_from(["1b", "43"]),
    st.sampled_from([13, 31, 48, 74, 145, 154]),
    st.sampled_from(["python", "a.out", "x, y"]),
    st.sampled_from(
        [
            "Ch 1",
            "Ch 0000000b",
            "(0x1, 0x2)",
            "TLW Fatal XC0 i0 Link 1 (0x1 0x2 0x3)",
            "TLW Fatal XC0 i0 Link 1 (0x1 0x2 0x4)",
        ]
    ),
)
logs = st.lists(st.tuples(faults, st.sampled_from([0, 0, 0, 1]), st.integers(0, 3)), max_size=30)


def written(log: list[tuple[str, int, int]], first: int = 0) -> str:
    """In the form of /dev/kmsg; the clocks of the CPUs differ a little."""
    return "".join(
        f"{facility << 3},{first + at},{(first + at) * 2 + shake},-;{text}\n"
        for at, (text, facility, shake) in enumerate(log)
    )


def read(text: str, after: int | None = None, most: int = 256) -> tuple[tuple[Event, ...], int | None]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kmsg"
        path.write_text(text)
        return read_kernel_log(str(path), after, most)


@given(texts)
def test_no_text_breaks_the_reader_and_what_it_finds_can_be_shown(text: str) -> None:
    line = parse_line(text)
    if line is not None:
        shown = line.text + (line.process or "")
        assert shown.isascii()
        assert shown == "" or shown.isprintable()
        assert line.kind is not EventKind.LOST


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    record = split_record(data)
    if record is not None:
        parse_line(decode(record[3]))


@given(logs)
@settings(deadline=None)
def test_every_record_of_the_kernel_is_counted_once(log: list[tuple[str, int, int]]) -> None:
    events, sequence = read(written(log))

    assert sum(event.count for event in events) == sum(facility == 0 for _, facility, _ in log)
    assert sequence == (len(log) - 1 if log else None)


@given(logs, st.data())
@settings(deadline=None)
def test_reading_in_two_portions_is_reading_at_once(log: list[tuple[str, int, int]], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log)))
    early, cursor = read(written(log[:cut]))
    late, sequence = read(written(log), cursor)

    assert (merge_events(early, late, 256), sequence) == read(written(log))


numbers = st.sampled_from(["1", "12", "10", "3", "00000008"])
registers = st.sampled_from(["0x1", "0x1f", "0xdeadbeef", "00000000a1b2c3d4", "7"])
others = st.builds(
    lambda form, bus, one, two: form.format(bus=bus, one=one, two=two),
    st.sampled_from(
        [
            "mlx5_core 0000:{bus}:00.0: poll_health:801:(pid {one}): Fatal error {two} detected",
            "mlx5_core 0000:{bus}:00.1: Port module event[error]: module {two}, Cable error",
            "mlx5_core 0000:{bus}:00.0 ens{one}np0: High temperature on sensors with bit set {two}",
            "nvme nvme{one}: I/O {two} QID 5 timeout, reset controller",
            "nvme 0000:{bus}:00.0: Removing after probe failure status: -{one}",
            "nvidia-nvswitch{one}: SXid (PCI:0000:{bus}:00.0): 20034, Fatal, Link {two} LTSSM Fault Up",
            "nvidia-nvswitch0: SXid (PCI:0000:{bus}:00.0): {one}, Severity {one} Engine instance {one}",
            "NVRM: GPU 0000:{bus}:00.0: GPU has fallen off the bus {one}",
            "NVRM: Xid (PCI:0000:{bus}:00 GPU-I:{one}): 31, pid={one}, name=x, Ch {two}",
            "NVRM: Xid (PCI:0000:{bus}:00): 74, pid={one}, name=x, NVLink: fatal ({two}, 0x1)",
            "EDAC MC{one}: {one} CE memory read error on CPU_SrcID#{two}",
            "EDAC MC0: 1 UE memory read error (page {one} offset {two})",
            "Memory failure: {one}: recovery action for page {two}",
            "Out of memory: Killed process {one} (a{two}) total-vm:{one}kB, anon-rss:1kB",
            "INFO: task a{two}:{one} blocked for more than {one} seconds.",
            "EXT4-fs (dm-{one}): Remounting filesystem read-only",
            "EXT4-fs (nvme0n{one}p{two}): Remounting filesystem read-only",
            "blk_update_request: I/O error, dev nvme{one}n1, sector {two} op 0x0:(READ)",
            "mce: [Hardware Error]: CPU {one}: Machine Check: {two} Bank 8: dc00000000101090",
            "{{{one}}}[Hardware Error]: event severity: corrected {two}",
            "watchdog: BUG: soft lockup - CPU#{one} stuck for {two}s! [a:{one}]",
        ]
    ),
    st.sampled_from(["1b", "43", "10", "18"]),
    numbers,
    registers,
)


@given(faults | others, faults | others)
@settings(max_examples=500)
def test_what_is_the_same_but_for_numbers_is_the_same_fault(first: str, second: str) -> None:
    alike = same_but_numbers(first.encode()), same_but_numbers(second.encode())
    if alike[0] is not None and alike[0] == alike[1]:
        one, two = parse_line(first), parse_line(second)
        if one is None or two is None:
            assert one is two
            return
        assert fold_key(one.kind, one.pci, one.number, one.severity, one.text) == fold_key(
            two.kind, two.pci, two.number, two.severity, two.text
        )


events = st.builds(
    lambda sequence, kind, number, pci, text, severity, count, told: Event(
        sequence, sequence / 2, sequence / 2 + count, kind, pci, number, text, None, severity, count, told
    ),
    st.integers(0, 400),
    st.sampled_from(list(EventKind)),
    st.none() | st.integers(13, 200),
    st.none() | st.integers(0, 99).map(lambda bus: f"0000:{bus:02x}:00"),
    st.sampled_from(["a", "b", "Ch 1", "Ch 2"]),
    st.sampled_from([None, "Fatal", "Nonfatal"]),
    st.integers(1, 1000),
    st.booleans(),
)


@given(st.lists(events, max_size=150), st.lists(events, max_size=150), st.integers(0, 80))
@settings(deadline=None)
def test_merging_keeps_every_count_and_the_bound(old: list[Event], new: list[Event], most: int) -> None:
    merged = merge_events(old, new, most)

    assert len(merged) <= max(most, LEAST_ROOM)
    for told in (False, True):
        for kind in EventKind:
            alike = [e for e in merged if e.told is told and e.kind is kind]
            given_ = [e for e in (*old, *new) if e.told is told and e.kind is kind]
            assert sum(e.count for e in alike) == sum(e.count for e in given_)
            assert max((e.last_s for e in alike), default=None) == max((e.last_s for e in given_), default=None)
    assert merge_events(merged, (), most) == merged
