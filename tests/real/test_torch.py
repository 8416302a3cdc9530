"""Files that torch itself saves, whole and damaged."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.formats import torch
from fleetctl.checkpoint.look import Ledger, Look
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from tests.formats.damage import Damage, cut, flip, zeros
from tests.real.conftest import MakeReal

VALID, CORRUPT = Validity.VALID, Validity.CORRUPT
NAME = "ckpt_500.pt"


@pytest.fixture(scope="module")
def saved(make_real: MakeReal, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    make_real("make_torch.py", folder)
    return folder


def check(path: Path, level: Level) -> Checked:
    return examine(LocalStorage(), path.parent, Entry(path.name, 500), level)


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("name", [NAME, "protocol4_500.pt", "weights_500.pt", "many_500.pt", "replay_500.pt"])
def test_a_whole_one_is_valid(name: str, level: Level, saved: Path) -> None:
    found = check(saved / name, level)
    assert (found.validity, found.level, found.reason, found.format) == (VALID, level, "", "torch")


@pytest.mark.parametrize("name", ["script_500.pt", "export_500.pt"])
def test_a_program_is_no_checkpoint_and_not_called_broken(name: str, saved: Path) -> None:
    assert check(saved / name, Level.CONTENT).validity is Validity.UNKNOWN


@pytest.mark.parametrize("name", ["unproved_500.pt", "old_500.pt"])
def test_one_without_checksums_is_valid_by_its_structure(name: str, saved: Path) -> None:
    found = check(saved / name, Level.CONTENT)
    assert (found.validity, found.level, found.deepest) == (VALID, Level.STRUCTURE, Level.STRUCTURE)
    assert "no checksum" in found.reason


@pytest.mark.parametrize("name", [NAME, "protocol4_500.pt", "unproved_500.pt", "old_500.pt"])
def test_the_step_is_read_from_inside(name: str, saved: Path) -> None:
    assert torch.peek(Look(LocalStorage(), saved, (name,), Ledger(lambda _: None))) == 500


def data_at(path: Path) -> int:
    """Where the numbers of the largest tensor lie."""
    with zipfile.ZipFile(path) as known:
        largest = max((info for info in known.infolist() if "/data/" in info.filename), key=lambda info: info.file_size)
        assert largest.file_size >= 16_000
        return path.read_bytes().rindex(known.read(largest))


# damage -> what STRUCTURE and CONTENT say; does torch itself see it
DAMAGES: dict[str, tuple[Damage, Validity, bool]] = {
    "cut to 0": (cut(NAME, lambda n: 0), CORRUPT, True),
    "cut to 1": (cut(NAME, lambda n: 1), CORRUPT, True),
    "cut to 1000": (cut(NAME, lambda n: 1000), CORRUPT, True),
    "cut to half": (cut(NAME, lambda n: n // 2), CORRUPT, True),
    "short of 100": (cut(NAME, lambda n: n - 100), CORRUPT, True),
    "short of 22": (cut(NAME, lambda n: n - 22), CORRUPT, True),
    "short of 1": (cut(NAME, lambda n: n - 1), CORRUPT, True),
    "tail of zeros": (zeros(NAME, lambda n: n - 5000, lambda n: 5000), CORRUPT, True),
    "hole": (lambda folder: zeros(NAME, lambda n: data_at(folder / NAME) + 64, lambda n: 4096)(folder), VALID, False),
    "bit": (lambda folder: flip(NAME, lambda n: data_at(folder / NAME) + 99)(folder), VALID, False),
}


@pytest.fixture(scope="module")
def damaged(saved: Path, make_real: MakeReal, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """One for each damage, and what torch says when it loads it."""
    folders = [tmp_path_factory.mktemp("damaged") for _ in DAMAGES]
    for folder, (damaging, *_) in zip(folders, DAMAGES.values(), strict=True):
        shutil.copy(saved / NAME, folder / NAME)
        damaging(folder)
    said = make_real("make_torch.py", "load", *(folder / NAME for folder in folders)).splitlines()
    return dict(zip(DAMAGES, zip(folders, said, strict=True), strict=True))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage(damage: str, damaged: dict[str, tuple[Path, str]]) -> None:
    """What torch loads silently, CONTENT finds; what torch cannot load, STRUCTURE finds."""
    (folder, said), (_, structure, seen) = damaged[damage], DAMAGES[damage]
    assert check(folder / NAME, Level.STRUCTURE).validity is structure
    assert check(folder / NAME, Level.CONTENT).validity is CORRUPT
    assert (said != "loaded") == seen, said


@pytest.mark.parametrize("size", [0, 1, 100, 0.5, -100, -1])
def test_a_cut_one_of_the_old_kind_is_seen(size: float, saved: Path, tmp_path: Path) -> None:
    name = "old_500.pt"
    shutil.copy(saved / name, tmp_path / name)
    cut(name, lambda n: int(n * size) if size == 0.5 else int(size) % n)(tmp_path)
    assert check(tmp_path / name, Level.STRUCTURE).validity is CORRUPT
