"""Any state comes back as it was, or is refused; any damage is noticed; fleetctl's own reader agrees."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numbers

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.model import Level, Validity, entry_of
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.train.checkpointer import CheckpointDamaged, Checkpointer, Loaded

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(2**5000), 2**5000) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
DTYPES = st.one_of(
    numbers.boolean_dtypes(),
    numbers.integer_dtypes(endianness="?"),
    numbers.unsigned_integer_dtypes(endianness="?"),
    numbers.floating_dtypes(endianness="?"),
    numbers.complex_number_dtypes(endianness="?"),
    numbers.datetime64_dtypes(endianness="?"),
    numbers.timedelta64_dtypes(endianness="?"),
    numbers.byte_string_dtypes(endianness="?"),
    numbers.unicode_string_dtypes(endianness="?"),
)
SHAPES = numbers.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Also views: transposed, with steps, backwards, with a dimension repeated."""
    array = draw(numbers.arrays(DTYPES, SHAPES))
    how = draw(st.sampled_from(["plain", "transposed", "fortran", "steps", "backwards", "repeated"]))
    if how == "transposed":
        return array.T
    if how == "fortran":
        return numpy.asfortranarray(array)
    if how == "repeated":
        return numpy.broadcast_to(array, (2, *array.shape))
    if how == "plain" or array.ndim == 0:
        return array
    return array[::2] if how == "steps" else array[::-1]


STATES = st.dictionaries(
    st.text(max_size=10),
    st.one_of(arrays(), JSON, st.binary(), st.binary().map(bytearray), st.binary().map(lambda raw: memoryview(raw))),
    max_size=5,
)


def same(saved: Any, loaded: Any) -> bool:
    """Equal in value and in type, bit by bit for arrays, NaN and -0.0 included."""
    if isinstance(saved, (bytearray, memoryview)):
        saved = bytes(saved)
    if type(saved) is not type(loaded):
        return False
    if isinstance(saved, numpy.ndarray):
        return (saved.dtype, saved.shape, saved.tobytes()) == (loaded.dtype, loaded.shape, loaded.tobytes())
    if isinstance(saved, dict):
        return list(saved) == list(loaded) and all(same(saved[key], loaded[key]) for key in saved)
    if isinstance(saved, list):
        return len(saved) == len(loaded) and all(map(same, saved, loaded))
    if isinstance(saved, float):
        return (math.isnan(saved) and math.isnan(loaded)) or repr(saved) == repr(loaded)
    return bool(saved == loaded)


def judged(committed: Path) -> Validity:
    """The word of the reader that chooses what a run resumes from."""
    entry = entry_of(committed.name)
    assert entry is not None
    return examine(LocalStorage(), committed.parent, entry, Level.CONTENT).validity


def open_in(folder: str, **more: Any) -> Checkpointer:
    return Checkpointer(directory=folder, environ={}, sleep=lambda seconds: None, **more)


@settings(deadline=None)
@given(STATES, st.sampled_from(["crc32", "sha256"]))
def test_a_state_comes_back(state: dict[str, Any], digest: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with open_in(folder, digest=digest) as checkpoints:
            checkpoints.save(3, state)
        with open_in(folder) as checkpoints:
            loaded = checkpoints.load()
        (committed,) = Path(folder).glob("step-*")
        assert judged(committed) is Validity.VALID
        assert isinstance(loaded, Loaded)
        assert loaded.training_step == 3
        assert same(state, loaded.state)
        for value in loaded.state.values():
            assert not isinstance(value, numpy.ndarray) or value.flags.writeable


@settings(deadline=None)
@given(STATES, st.data())
def test_any_damage_is_noticed(state: dict[str, Any], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with open_in(folder) as checkpoints:
            checkpoints.save(3, state)
        (committed,) = Path(folder).glob("step-*")
        path = committed / data.draw(st.sampled_from(["shard-00000.bin", "manifest.json"]))
        raw = bytearray(path.read_bytes())
        where = data.draw(st.integers(0, len(raw) - 1))
        how = data.draw(st.sampled_from(["flip", "cut", "grow", "zeros"]))
        if how == "flip":
            raw[where] ^= 1 << data.draw(st.integers(0, 7))
        elif how == "cut":
            del raw[where:]
        elif how == "grow":
            raw += b"x"
        elif not any(raw[where:]):
            return  # zeros over zeros
        else:
            raw[where:] = bytes(len(raw) - where)
        path.write_bytes(raw)
        assert judged(committed) is Validity.CORRUPT
        with open_in(folder) as checkpoints, pytest.raises(CheckpointDamaged):
            checkpoints.load()
