"""What the safetensors library writes is valid, and what it refuses to read is not."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from tests.formats.safetensors import safe_bytes
from tests.real.conftest import MakeReal
from tests.unit.formats.test_safetensors import BAD_HEADERS, GOOD_HEADERS

VALID, INCOMPLETE, CORRUPT, UNKNOWN = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT, Validity.UNKNOWN
MUTANTS = 4_000
SCRIPT = "make_safetensors.py"


def check(path: Path, level: Level) -> Checked:
    return examine(LocalStorage(), path.parent, Entry(path.name, 0), level, wanted="safetensors")


@pytest.fixture(scope="module")
def saved(make_real: MakeReal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("safetensors") / "saved"
    make_real(SCRIPT, "save", folder)
    return folder


@pytest.mark.parametrize("name", ["kinds.safetensors", "sharded", "single"])
@pytest.mark.parametrize("level", list(Level))
def test_what_the_library_writes_is_valid(name: str, level: Level, saved: Path) -> None:
    found = check(saved / name, level)
    assert (found.validity, found.level, found.resumable) == (VALID, min(level, Level.STRUCTURE), False)


def test_damages_of_a_real_model_in_shards(saved: Path) -> None:
    folder = saved / "sharded"
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 2
    whole = shards[1].read_bytes()
    os.truncate(shards[1], len(whole) - 1)
    assert check(folder, Level.STRUCTURE).validity is CORRUPT
    shards[1].write_bytes(shards[0].read_bytes())
    assert "lacks" in check(folder, Level.STRUCTURE).reason
    shards[1].write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert check(folder, Level.CONTENT).validity is VALID  # no checksum: deepest says so
    shards[1].unlink()
    assert check(folder, Level.NAMES).validity is INCOMPLETE
    shards[1].write_bytes(whole)
    index = folder / "model.safetensors.index.json"
    index.rename(folder / "aside")
    found = check(folder, Level.NAMES)
    assert (found.validity, found.uncommitted) == (INCOMPLETE, True)
    (folder / "aside").rename(index)
    assert check(folder, Level.CONTENT).validity is VALID


def mutant(chance: random.Random, whole: bytes) -> bytes:
    """Some bytes changed, cut, doubled or put in, mostly in the header and of what a header is made of."""
    raw = bytearray(whole)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        place = chance.randrange(len(raw) if chance.random() < 0.2 else min(len(raw), 220))
        what, size = chance.randrange(5), chance.randrange(1, 9)
        if what == 0:
            raw[place] ^= 1 << chance.randrange(8)
        elif what == 1:
            raw[place] = chance.choice(b'0123456789[]{},:" -.eEfF\\u\0\xff')
        elif what == 2:
            del raw[place : place + size]
        elif what == 3:
            raw[place:place] = raw[place : place + size]
        else:
            raw[place] = chance.choice(b"0123456789")
        if chance.random() < 0.5 and len(raw) > 8:  # a length that fits again
            raw[:8] = max(len(raw) - 8 - 24, 0).to_bytes(8, "little")
    return bytes(raw)


def test_the_library_and_fleetctl_agree_on_every_file(make_real: MakeReal, tmp_path: Path) -> None:
    chance = random.Random(4)  # the same files each time
    folder = tmp_path / "files"
    folder.mkdir()
    made = {f"m{number}": mutant(chance, safe_bytes()) for number in range(MUTANTS)}
    made |= {
        f"g{number}": safe_bytes(header, bytes(size)) for number, (header, size) in enumerate(GOOD_HEADERS.values())
    }
    made |= {f"b{number}": safe_bytes(said[0], bytes(said[1])) for number, said in enumerate(BAD_HEADERS.values())}
    for name, raw in made.items():
        (folder / f"{name}.safetensors").write_bytes(raw)
    said: dict[str, str] = json.loads(make_real(SCRIPT, "judge", folder))
    assert len(said) == len(made)
    found = {name: check(folder / name, Level.STRUCTURE) for name in said}
    apart = {
        name: (said[name], one.validity, one.reason)
        for name, one in found.items()
        if (one.validity is VALID) != (said[name] == "")
    }
    assert apart == {}
    verdicts = [one.validity for one in found.values()]
    assert min(verdicts.count(VALID), verdicts.count(CORRUPT)) > 100
    assert all("unknown variant" in said[name] for name, one in found.items() if one.validity is UNKNOWN)
