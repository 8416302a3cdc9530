"""Field values: ids, and a union that is read by its type."""

from __future__ import annotations

import struct

import pytest

from fleetctl.health import readings
from fleetctl.health.model import Read
from fleetctl.health.nvml_fields import EVERY_PHASE, LINK, Shape, decode, gpu_fields, link_fields, shape_of

GARBAGE = b"\xde\xad\xbe\xef\xde\xad\xbe\xef"


def value(field: int, kind: int, union: bytes, *, scope: int = 0, code: int = 0) -> bytes:
    return struct.pack("=IIqqIi8s", field, scope, 1, 2, kind, code, (union + GARBAGE)[:8])


@pytest.mark.parametrize(
    ("kind", "union", "expected"),
    [
        (0, struct.pack("=d", 1.5), Read(1.5)),
        (1, struct.pack("=I", 4_000_000_000), Read(4_000_000_000)),
        (2, struct.pack("=Q", 2**63 + 1), Read(2**63 + 1)),
        (3, struct.pack("=Q", 2**64 - 1), Read(2**64 - 1)),
        (4, struct.pack("=q", -7), Read(-7)),
        (5, struct.pack("=i", -3), Read(-3)),
        (6, struct.pack("=H", 65535), Read(65535)),
        (7, b"", Read(None, 21)),
        (4_000_000_000, b"", Read(None, 21)),
        (0, struct.pack("=d", float("nan")), Read(None, 21)),
        (0, struct.pack("=d", float("-inf")), Read(None, 21)),
    ],
)
def test_the_union_is_read_by_its_type_whatever_lies_beside_it(kind: int, union: bytes, expected: Read) -> None:
    assert decode(value(83, kind, union)) == {(83, 0): expected}


def test_each_value_has_a_code_of_its_own() -> None:
    values = (
        value(165, 1, b"\1\0\0\0", scope=3) + value(165, 1, GARBAGE, scope=4, code=999) + value(230, 9, b"", code=2)
    )
    assert decode(values) == {(165, 3): Read(1), (165, 4): Read(None, 999), (230, 0): Read(None, 2)}


def test_the_keys_are_those_of_the_table_of_readings() -> None:
    assert set(EVERY_PHASE) <= set(readings.EVERY_PHASE)
    assert list(LINK) == list(readings.LINK)


def test_a_gpu_is_asked_for_each_field_once() -> None:
    asked = gpu_fields(more=True) + link_fields(0, 18, tuple(LINK))
    assert len(asked) == len(set(asked)) == 14 + 3 + 18 * 8
    assert link_fields(18, 20, ("state",)) == [(165, 18), (165, 19)]


def link(**codes: int) -> dict[str, Read]:
    return {key: Read(None, codes[key]) if codes.get(key) else Read(0) for key in LINK}


def test_the_next_gpu_is_not_asked_for_what_the_driver_does_not_know() -> None:
    old = dict.fromkeys(("receive_errors", "integrity_errors", "recovery_failed", "recovery_events"), 3)
    assert shape_of([link(**old)] * 12, Shape()) == Shape(12, ("state", "replays", "recoveries", "crc_errors"))


def test_a_counter_that_one_link_has_is_asked_for_again() -> None:
    assert shape_of([link(replays=3), link(replays=999), link(replays=2)], Shape()) == Shape(3)


def test_a_gpu_without_links_leaves_the_counters_open() -> None:
    assert shape_of([], Shape()) == Shape(0)
