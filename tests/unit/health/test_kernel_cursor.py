"""Where a look at the kernel log ends and the next one goes on: devices that lose records, full rings, other boots."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from fleetctl.health import kernel_collect, kernel_lines
from fleetctl.health.kernel_lines import split_record
from fleetctl.health.kernel_log import read_kernel_log
from fleetctl.health.model import Event, EventKind
from tests.unit.health.kmsg import LOST_GPU, NULL, UNREAD, Counted, Device, log_of, read, ring, xid
from tests.unit.health.trees import record, records


@pytest.mark.parametrize(
    ("before", "after", "lost"), [(7, 8, 1), (7, 20, 12), (None, 20, 1)], ids=["no gap", "a gap", "nothing read before"]
)
def test_a_device_that_lost_records_says_how_many(
    monkeypatch: pytest.MonkeyPatch, before: int | None, after: int, lost: int
) -> None:
    first = [] if before is None else [record(before, "usb").encode()]
    Device(*first, errno.EPIPE, record(after, xid(48)).encode()).instead_of_null(monkeypatch)

    events, sequence = read(NULL)

    assert [(event.kind, event.count) for event in events] == [(EventKind.LOST, lost), (EventKind.XID, 1)]
    assert sequence == after


def test_a_device_that_loses_records_without_an_end_ends_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(descriptor: int, most: int) -> bytes:
        raise BrokenPipeError(errno.EPIPE, "lost")

    ticks = iter(range(1000))
    monkeypatch.setattr(os, "read", lose)
    events, sequence = read_kernel_log(str(NULL), 5, 64, within_s=20.0, monotonic=lambda: float(next(ticks)))

    assert [event.text for event in events] == [UNREAD.format("time ran out")]
    assert sequence == 5


def test_an_error_after_some_records_keeps_them_and_says_that_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    Device(record(1, xid(48)).encode(), errno.EIO).instead_of_null(monkeypatch)

    events, sequence = read(NULL)

    assert [(event.kind, event.number) for event in events] == [(EventKind.XID, 48), (EventKind.LOST, None)]
    assert events[1].text == UNREAD.format(os.strerror(errno.EIO))
    assert sequence == 1


@pytest.mark.parametrize("behind", [0, 1, 2, 3, 4095, 4096, 4097, 9000])
def test_what_a_device_handed_out_before_is_passed_by_unparsed(monkeypatch: pytest.MonkeyPatch, behind: int) -> None:
    """Whatever their number: none of the new ones is passed by, none of the old ones is told again."""
    first = 500
    after = first + behind
    new = [record(after + 1, xid(48)).encode(), *ring(after + 2, after + 5)]
    old = [record(at, LOST_GPU).encode() for at in sorted({first, after})]
    between = [record(10**9, LOST_GPU).encode()] * (behind - 1)  # would be new, if it were looked at
    Device(*old[:1], *between, *old[1:], *new).instead_of_null(monkeypatch)

    events, sequence = read(NULL, after)

    assert ([(event.kind, event.number) for event in events], sequence) == ([(EventKind.XID, 48)], after + 4)


def test_what_is_overwritten_while_it_is_passed_by_starts_the_count_again(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(*ring(100, 110), errno.EPIPE, *ring(150, 161), record(161, xid(48)).encode())
    device.instead_of_null(monkeypatch)

    events, sequence = read(NULL, 160)

    assert ([(event.kind, event.number) for event in events], sequence) == ([(EventKind.XID, 48)], 161)


def test_what_is_overwritten_beyond_the_old_ones_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    Device(*ring(100, 110), errno.EPIPE, *ring(171, 180)).instead_of_null(monkeypatch)

    events, sequence = read(NULL, 160)

    assert ([(event.kind, event.count) for event in events], sequence) == ([(EventKind.LOST, 10)], 179)


@pytest.mark.parametrize("kind", ["device", "file"])
def test_a_full_ring_that_was_read_before_costs_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Counted, not timed: how many of 100,000 records are split."""
    split = Counted(split_record)
    end = 100_000
    for module in (kernel_collect, kernel_lines):
        monkeypatch.setattr(module, "split_record", split)
    records_ = ring(0, end)
    if kind == "device":
        Device(*records_).instead_of_null(monkeypatch)
        assert read(NULL, end - 1) == ((), end - 1)
    else:
        assert read(log_of(tmp_path / "kmsg", b"".join(records_).decode()), end - 1) == ((), end - 1)

    assert 0 < split.calls <= 1000


@pytest.mark.parametrize("kind", ["device", "file"])
@pytest.mark.parametrize("after", [99_990, 4, 9])
def test_a_log_that_ends_below_the_cursor_is_another_boots_and_is_read_from_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, after: int
) -> None:
    """Where the boot id cannot be read, nothing else tells of the boot."""
    lines = [record(0, LOST_GPU), record(1, "usb"), record(2, xid(48)), record(3, "usb")]
    if kind == "device":
        encoded = [line.encode() for line in lines]
        Device(*encoded, errno.EAGAIN, *encoded).instead_of_null(monkeypatch)
    path = NULL if kind == "device" else log_of(tmp_path / "kmsg", "".join(lines))

    events, sequence = read(path, after)

    assert ([event.number for event in events], sequence) == ([79, 48], 3)


def clock_from(now_s: float) -> Callable[[], float]:
    """A clock that goes on by 0.05 s each time that it is looked at."""
    ticks = count(0)
    return lambda: now_s + next(ticks) / 20


def test_a_log_that_is_not_read_to_its_end_says_so_and_the_next_look_goes_on(tmp_path: Path) -> None:
    """Each look gets on, also where all its time goes into what was read before."""
    end = 4000
    log = log_of(tmp_path / "kmsg", records({at: f"usb {at} {'x' * 90}" for at in range(end)} | {end: LOST_GPU}))
    found: list[Event] = []
    cursors: list[int] = []
    while cursors[-1:] != [end]:
        after = cursors[-1] if cursors else None
        events, cursor = read_kernel_log(str(log), after, 64, 0.1, clock_from(50.0))
        assert cursor is not None
        assert after is None or cursor > after
        cursors.append(cursor)
        found += [event for event in events if event.kind is not EventKind.LOST]
        lost = [event for event in events if event.kind is EventKind.LOST]
        assert [event.text for event in lost] == [UNREAD.format("time ran out")] * (cursor != end or len(lost))
        assert all(event.last_s >= 50.1 for event in lost)  # it is of now, however old the records are
    assert [event.number for event in found] == [79]
    assert len(cursors) > 2
