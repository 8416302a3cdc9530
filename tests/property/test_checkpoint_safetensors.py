"""No bytes make the check of a safetensors file raise, and what passes it is whole by the rules of the format."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.formats.safetensors import parse_header
from fleetctl.checkpoint.look import Unjudged
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from tests.formats.safetensors import DATA, HEADER, safe_bytes, write_sharded

WHOLE = safe_bytes()
INDEX = "model.safetensors.index.json"
END_OF_HEADER = len(WHOLE) - len(DATA)


def check(raw: bytes) -> Checked:
    with tempfile.TemporaryDirectory() as where:
        path = Path(where) / "x.safetensors"
        path.write_bytes(raw)
        return examine(LocalStorage(), path.parent, Entry(path.name, 0), Level.CONTENT, wanted="safetensors")


@settings(max_examples=300, deadline=None)
@given(cut=st.integers(0, len(WHOLE)), tail=st.binary(max_size=40))
def test_any_other_length_is_corrupt(cut: int, tail: bytes) -> None:
    raw = WHOLE[:cut] + tail
    if len(raw) != len(WHOLE):
        assert check(raw).validity is Validity.CORRUPT


@settings(max_examples=500, deadline=None)
@given(place=st.integers(0, END_OF_HEADER - 1), value=st.integers(0, 255))
def test_one_other_byte_of_the_header_never_raises(place: int, value: int) -> None:
    raw = bytearray(WHOLE)
    raw[place] = value
    found = check(bytes(raw))
    assert found.reason.isprintable()
    assert found.validity in (Validity.VALID, Validity.CORRUPT, Validity.UNKNOWN)


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=200))
def test_any_bytes_never_raise(raw: bytes) -> None:
    assert check(raw).validity is not Validity.INCOMPLETE


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
TENSOR = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "BF16", "F4", "F6_E2M3", "F64", "F2"]) | st.text(max_size=3),
        "shape": st.lists(st.integers(0, 4) | st.integers(-1, 2**70), max_size=3),
        "data_offsets": st.tuples(st.integers(0, 8), st.integers(0, 8)) | JSON,
    }
)


@settings(max_examples=500, deadline=None)
@given(header=st.dictionaries(st.text(max_size=4), TENSOR | JSON, max_size=4))
def test_a_header_that_passes_covers_its_data_without_a_gap(header: dict[str, object]) -> None:
    try:
        tensors = parse_header(json.dumps(header).encode())
    except Unjudged:
        return
    except ValueError:
        return
    ends = sorted(one.data_offsets for one in tensors.values())
    assert [start for start, _ in ends] == [0, *(end for _, end in ends)][: len(ends)]


def test_the_header_that_the_others_change_is_a_good_one() -> None:
    assert set(parse_header(json.dumps(HEADER).encode())) == {"bias", "weight"}


@settings(max_examples=200, deadline=None)
@given(index=st.binary(max_size=60) | JSON.map(lambda value: json.dumps({"weight_map": value}).encode()))
def test_no_index_makes_a_check_raise(index: bytes) -> None:
    with tempfile.TemporaryDirectory() as where:
        folder = write_sharded(Path(where) / "model")
        (folder / INDEX).write_bytes(index)
        found = examine(LocalStorage(), folder.parent, Entry("model", 0), Level.CONTENT, wanted="safetensors")
        assert found.validity is not Validity.VALID
