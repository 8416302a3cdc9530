"""No change of a byte goes unnoticed when the content is checked, and no bytes at all make a check raise."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.model import Checked, Level, Validity, entry_of
from fleetctl.checkpoint.storage import LocalStorage
from tests.checkpoints import write_checkpoint

FILES = ("manifest.json", "shard-00000.bin", "shard-00000.json", "shard-00001.bin", "shard-00001.json")


def check(folder: Path, level: Level) -> Checked:
    entry = entry_of(folder.name)
    assert entry is not None
    return examine(LocalStorage(), folder.parent, entry, level)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(FILES), place=st.integers(0, 10_000), value=st.integers(0, 255))
def test_one_other_byte_is_never_valid(name: str, place: int, value: int) -> None:
    with tempfile.TemporaryDirectory() as where:
        folder = write_checkpoint(Path(where), 120, data=b"0123456789")
        raw = bytearray((folder / name).read_bytes())
        place %= len(raw)
        same = raw[place] == value
        raw[place] = value
        (folder / name).write_bytes(raw)
        assert (check(folder, Level.CONTENT).validity is Validity.VALID) == same


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(FILES), cut=st.integers(0, 10_000), tail=st.binary(max_size=40))
def test_any_other_end_is_never_valid(name: str, cut: int, tail: bytes) -> None:
    with tempfile.TemporaryDirectory() as where:
        folder = write_checkpoint(Path(where), 120, data=b"0123456789")
        before = (folder / name).read_bytes()
        after = before[: cut % (len(before) + 1)] + tail
        (folder / name).write_bytes(after)
        assert (check(folder, Level.CONTENT).validity is Validity.VALID) == (before == after)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(FILES), value=JSON, level=st.sampled_from(list(Level)))
def test_no_json_makes_a_check_raise(name: str, value: object, level: Level) -> None:
    import json

    with tempfile.TemporaryDirectory() as where:
        folder = write_checkpoint(Path(where), 120)
        (folder / name).write_text(json.dumps(value))
        assert isinstance(check(folder, level), Checked)
