"""No bytes make a parser of other people's files raise anything but its own words, take long, or believe a cut file."""

from __future__ import annotations

import itertools
import pickle
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleetctl.checkpoint import inert, zips
from fleetctl.checkpoint.formats import dcp, torch
from tests.formats.torch import legacy_bytes, torch_bytes
from tests.fuzz.targets import SEEDS, TARGETS, MemoryBlob

OPCODES = bytes(
    b"()01NQRabet]}us\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94" + b"hKqjMJrGcXBT\x8c\x8a\x8d\x8e.\x95\x80"
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4)
    ),
    max_leaves=30,
)


def plain(value: object) -> object:
    if isinstance(value, inert.Map):
        return {key: plain(one) for key, one in value.items()}
    return type(value)(map(plain, value)) if isinstance(value, (list, tuple)) else value


@settings(max_examples=300, deadline=None)
@given(value=PLAIN, protocol=st.integers(2, 5))
def test_plain_values_survive(value: object, protocol: int) -> None:
    assert plain(inert.load(pickle.dumps(value, protocol))) == value


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=150, deadline=5000)
@given(raw=st.binary(max_size=500))
def test_any_bytes(name: str, raw: bytes) -> None:
    TARGETS[name](raw)


@settings(max_examples=500, deadline=5000)
@given(raw=st.lists(st.sampled_from(OPCODES) | st.integers(0, 3), max_size=120).map(bytes))
@example(raw=b"}K\x01Q")
@example(raw=b"N\x86N\x86Qb")
@example(raw=b"]]\x86N\x86Q\x85R")
def test_any_opcodes(raw: bytes) -> None:
    TARGETS["inert"](raw + b".")


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=150, deadline=5000)
@given(seed=st.integers(0, 2**32), changes=st.integers(1, 4), data=st.data())
def test_good_ones_with_other_bytes(name: str, seed: int, changes: int, data: st.DataObject) -> None:
    raw, rng = bytearray(data.draw(st.sampled_from(SEEDS[name]))), random.Random(seed)
    for _ in range(changes):
        at, kind = rng.randrange(len(raw)), rng.randrange(3)
        if kind == 0:
            raw[at] = rng.randrange(256)
        elif kind == 1:
            raw[at : at + rng.randrange(9)] = rng.randbytes(rng.randrange(9))
        else:
            raw[at : at + 8] = rng.choice([b"\xff" * 8, bytes(8), b"\xff" * 7 + b"\x7f"])[: len(raw) - at]
    TARGETS[name](bytes(raw))


@pytest.mark.parametrize("raw", [torch_bytes(), legacy_bytes()], ids=["zip", "legacy"])
@settings(max_examples=150, deadline=None)
@given(cut=st.integers(0, 10**6), tail=st.integers(0, 40))
def test_a_cut_file_with_any_tail_of_zeros_is_not_believed(raw: bytes, cut: int, tail: int) -> None:
    damaged = raw[: cut % len(raw)] + bytes(tail)
    hole = len(damaged) == len(raw) and not raw.startswith(b"PK")  # the older kind has no checksum that would show it
    if damaged != raw and not hole:
        with pytest.raises(ValueError, match=" "):
            torch._read_torch(MemoryBlob(damaged))


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_moves_no_entry(place: int, bit: int) -> None:
    """Whatever else it does: entries that are read lie in the file and do not overlap."""
    raw = bytearray(torch_bytes())
    raw[place % len(raw)] ^= 1 << bit
    try:
        found = zips.read_zip(MemoryBlob(bytes(raw)))
    except ValueError:
        return
    places = sorted((entry.offset, entry.offset + entry.size_bytes) for entry in found.entries)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(places))
    assert places[-1][1] <= len(raw)


@settings(max_examples=200, deadline=None)
@given(name=st.text(max_size=30))
def test_any_name_has_a_step_or_none(name: str) -> None:
    for step in (dcp.step_named(name), torch.step_named(name)):
        assert step is None or 0 <= step < 10**18
