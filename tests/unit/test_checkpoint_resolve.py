"""What a start takes: as few looks as possible, patience with file systems that show things late, and never scratch
where something was."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetctl.checkpoint import select
from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.model import Checked, Choice, Fence, Level, Load, Needs, Outcome, Validity, load_of, suspects
from fleetctl.checkpoint.resolve import Patience, resolve
from fleetctl.checkpoint.storage import Blob, Found, LocalStorage, Storage
from fleetctl.checkpoint.survey import survey, survey_names
from fleetctl.errors import CannotTell
from fleetctl.train import layout
from tests.checkpoints import write_checkpoint
from tests.unit.clocks import StillClock

OPEN = Fence.open("run-a")


def ask(
    directory: Path,
    *,
    storage: Storage | None = None,
    fence: Fence = OPEN,
    bad: frozenset[str] = frozenset(),
    once_valid: bool = False,
    at_most_step: int | None = None,
    level: Level = Level.STRUCTURE,
    patience: Patience | None = None,
) -> Choice:
    storage = storage or LocalStorage()
    found = survey(storage, directory, "auto")
    return resolve(
        lambda entry, deep: examine(storage, directory, entry, deep),
        found,
        fence,
        suspects=bad,
        once_valid=once_valid,
        at_most_step=at_most_step,
        needs=Needs(level),
        patience=patience,
    )


def spoil(folder: Path) -> None:
    os.truncate(folder / "shard-00000.bin", 10)


def flip(folder: Path) -> None:
    raw = bytearray((folder / "shard-00000.bin").read_bytes())
    raw[-1] ^= 1
    (folder / "shard-00000.bin").write_bytes(raw)


def name_of(choice: Choice) -> str | None:
    return None if choice.chosen is None else choice.chosen.name


def why(choice: Choice) -> dict[int, tuple[Validity, str]]:
    return {one.entry.training_step: (one.validity, one.reason) for one in choice.passed_over if one.entry is not None}


def test_the_newest_valid_one_is_taken(tmp_path: Path) -> None:
    for step in (100, 20, 300):
        write_checkpoint(tmp_path, step)
    choice = ask(tmp_path)
    assert (choice.outcome, choice.passed_over) == (Outcome.RESUME, ())
    assert name_of(choice) == layout.committed_name(300, "run-a", "1.0")


def test_of_one_step_the_newer_attempt_is_taken(tmp_path: Path) -> None:
    for attempt in ("2.0", "10.0", "9.1"):
        write_checkpoint(tmp_path, 100, attempt=attempt)
    assert name_of(ask(tmp_path)) == layout.committed_name(100, "run-a", "10.0")


def test_a_torn_one_is_passed_over_with_its_reason(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 100)
    spoil(write_checkpoint(tmp_path, 200))
    (write_checkpoint(tmp_path, 300) / layout.MANIFEST).unlink()
    choice = ask(tmp_path)
    assert name_of(choice) == layout.committed_name(100, "run-a", "1.0")
    assert why(choice)[300] == (Validity.INCOMPLETE, "manifest.json is missing")
    assert why(choice)[200][0] is Validity.CORRUPT
    assert [one.name for one in choice.passed_over] == sorted((one.name for one in choice.passed_over), reverse=True)


def test_nothing_saved_is_a_start_from_scratch(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert ask(tmp_path).outcome is Outcome.SCRATCH
    assert ask(tmp_path / "missing").outcome is Outcome.SCRATCH


def test_something_saved_and_nothing_valid_is_held(tmp_path: Path) -> None:
    spoil(write_checkpoint(tmp_path, 100))
    choice = ask(tmp_path)
    assert choice.outcome is Outcome.HOLD
    assert "none of 1 is valid" in choice.reason


def test_what_was_once_valid_is_never_forgotten(tmp_path: Path) -> None:
    assert ask(tmp_path, once_valid=True).outcome is Outcome.HOLD


def test_what_stood_and_is_gone_holds(tmp_path: Path) -> None:
    gone = layout.committed_name(100, "run-a", "1.0")
    choice = ask(tmp_path, fence=Fence("run-a", frozenset({gone}), (2, 0)))
    assert choice.outcome is Outcome.HOLD
    assert why(choice)[100] == (Validity.INCOMPLETE, "it stood in an earlier claim and is gone")


def test_an_older_one_that_is_gone_is_not_spoken_of(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 200)
    gone = layout.committed_name(100, "run-a", "1.0")
    choice = ask(tmp_path, fence=Fence("run-a", frozenset({gone, folder.name}), (2, 0)))
    assert (name_of(choice), choice.passed_over) == (folder.name, ())


def test_a_late_commit_of_an_older_attempt_is_not_taken(tmp_path: Path) -> None:
    stood = write_checkpoint(tmp_path, 100, attempt="1.0")
    write_checkpoint(tmp_path, 200, attempt="1.0")
    choice = ask(tmp_path, fence=Fence("run-a", frozenset({stood.name}), (2, 0)))
    assert name_of(choice) == stood.name
    assert "not in the newest claim" in why(choice)[200][1]
    later = write_checkpoint(tmp_path, 150, attempt="2.0")
    assert name_of(ask(tmp_path, fence=Fence("run-a", frozenset({stood.name}), (2, 0)))) == later.name


def test_another_runs_checkpoints_are_not_taken_but_at_a_first_start(tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path, 100, run_id="run-b")
    assert ask(tmp_path, fence=Fence("run-a", frozenset(), (1, 0))).outcome is Outcome.SCRATCH
    assert ask(tmp_path, fence=Fence("run-a", frozenset(), None)).outcome is Outcome.SCRATCH
    assert name_of(ask(tmp_path)) == other.name


def test_a_person_may_ask_for_an_earlier_step(tmp_path: Path) -> None:
    wanted = write_checkpoint(tmp_path, 100)
    write_checkpoint(tmp_path, 200)
    assert name_of(ask(tmp_path, at_most_step=150)) == wanted.name
    assert ask(tmp_path, at_most_step=50).outcome is Outcome.HOLD  # not from scratch: something was saved
    assert select.standing(survey_names((wanted.name,), "own"), OPEN, 150) == (wanted.name,)


def test_a_suspect_is_taken_last_and_only_whole(tmp_path: Path) -> None:
    older, newer = write_checkpoint(tmp_path, 100), write_checkpoint(tmp_path, 200)
    bad = frozenset({newer.name})
    choice = ask(tmp_path, bad=bad)
    assert name_of(choice) == older.name
    assert why(choice)[200] == (Validity.SUSPECT, "an attempt died while it loaded this")
    spoil(older)
    choice = ask(tmp_path, bad=bad)
    assert (choice.outcome, name_of(choice)) == (Outcome.RESUME, newer.name)
    assert choice.chosen is not None
    assert choice.chosen.level is Level.CONTENT
    flip(newer)
    assert ask(tmp_path, bad=bad).outcome is Outcome.HOLD


def test_of_several_suspects_the_newest_whole_one_is_taken(tmp_path: Path) -> None:
    folders = [write_checkpoint(tmp_path, step) for step in (100, 200, 300)]
    flip(folders[2])
    choice = ask(tmp_path, bad=frozenset(folder.name for folder in folders))
    assert name_of(choice) == folders[1].name
    assert {step: validity for step, (validity, _) in why(choice).items()} == {
        300: Validity.CORRUPT,
        100: Validity.SUSPECT,
    }


def test_a_suspect_whose_content_cannot_be_checked_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetctl.checkpoint.content.Digest", _no_digest)
    folder = write_checkpoint(tmp_path, 100)
    assert ask(tmp_path).outcome is Outcome.RESUME
    assert ask(tmp_path, bad=frozenset({folder.name})).outcome is Outcome.HOLD


def _no_digest(kind: str) -> None:
    from fleetctl.train.digests import DigestMissing

    raise DigestMissing("xxhash is not installed")


class Counting:
    """A storage that counts what it is asked."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.opened: set[str] = set()
        self._inner = LocalStorage()

    def names(self, directory: Path) -> tuple[str, ...]:
        self.calls["names"] += 1
        return self._inner.names(directory)

    def listing(self, directory: Path, *inside: str) -> tuple[str, ...]:
        self.calls["listing"] += 1
        return self._inner.listing(directory, *inside)

    def look(self, directory: Path, *inside: str) -> Found | None:
        self.calls["look"] += 1
        return self._inner.look(directory, *inside)

    def look_all(self, directory: Path, *inside: str) -> dict[str, Found]:
        self.calls["look_all"] += 1
        return self._inner.look_all(directory, *inside)

    @contextlib.contextmanager
    def open(self, directory: Path, *inside: str) -> Iterator[Blob]:
        self.calls["open"] += 1
        self.opened.add(inside[0])
        with self._inner.open(directory, *inside) as blob:
            yield blob


def test_only_the_newest_of_200_is_looked_into(tmp_path: Path) -> None:
    counts = []
    for older in (1, 199):
        directory = tmp_path / str(older)
        for step in range(older + 1):
            write_checkpoint(directory, step)
        storage = Counting()
        assert ask(directory, storage=storage).outcome is Outcome.RESUME
        assert storage.opened == {layout.committed_name(older, "run-a", "1.0")}
        counts.append(storage.calls)
    assert counts[0] == counts[1] == {"names": 1, "look": 1, "look_all": 1, "open": 3}


class Late:
    """A file system that shows one name only after the clock has moved on, or loses it again."""

    def __init__(self, hidden: str, clock: StillClock, *, until_s: float, number: int | None = None) -> None:
        self._hidden, self._clock, self._until_s, self._number = hidden, clock, until_s, number
        self._inner = LocalStorage()
        self.looks = 0

    def names(self, directory: Path) -> tuple[str, ...]:
        return self._inner.names(directory)

    def listing(self, directory: Path, *inside: str) -> tuple[str, ...]:
        return self._inner.listing(directory, *inside)

    def look(self, directory: Path, *inside: str) -> Found | None:
        if self._hidden in inside and self._clock.monotonic_s() < self._until_s:
            self.looks += 1
            if self._number is not None:
                raise OSError(self._number, os.strerror(self._number))
            return None
        return self._inner.look(directory, *inside)

    def look_all(self, directory: Path, *inside: str) -> dict[str, Found]:
        found = self._inner.look_all(directory, *inside)
        if self._hidden in found and self._clock.monotonic_s() < self._until_s:
            self.looks += 1
            if self._number is not None:
                raise OSError(self._number, os.strerror(self._number))
            del found[self._hidden]
        return found

    def open(self, directory: Path, *inside: str) -> contextlib.AbstractContextManager[Blob]:
        return self._inner.open(directory, *inside)


@pytest.mark.parametrize("hidden", [layout.MANIFEST, "shard-00001.bin", layout.committed_name(200, "run-a", "1.0")])
@pytest.mark.parametrize("number", [None, 5, 116])
def test_a_file_that_is_shown_late_is_waited_for(hidden: str, number: int | None, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 100)
    newest = write_checkpoint(tmp_path, 200)
    clock = StillClock()
    storage = Late(hidden, clock, until_s=20.0, number=number)
    assert name_of(ask(tmp_path, storage=storage, patience=Patience(clock, 60.0))) == newest.name
    assert clock.monotonic_s() == 20.0


def test_patience_ends(tmp_path: Path) -> None:
    older = write_checkpoint(tmp_path, 100)
    newest = write_checkpoint(tmp_path, 200)
    clock = StillClock()
    storage = Late(layout.MANIFEST, clock, until_s=1e9)
    (older / layout.MANIFEST).rename(older / "moved")
    choice = ask(tmp_path, storage=storage, patience=Patience(clock, 60.0))
    assert choice.outcome is Outcome.HOLD
    assert clock.monotonic_s() == 60.0  # for the newest alone: not as long again for each older one
    assert storage.looks == 61
    assert why(choice)[200] == (Validity.INCOMPLETE, "manifest.json is missing")
    assert newest.exists()


def test_nobody_waits_without_patience_or_for_what_is_wrong(tmp_path: Path) -> None:
    older = write_checkpoint(tmp_path, 100)
    newest = write_checkpoint(tmp_path, 200)
    clock = StillClock()
    assert name_of(ask(tmp_path, storage=Late(newest.name, clock, until_s=20.0))) == older.name
    spoil(newest)
    assert name_of(ask(tmp_path, patience=Patience(clock, 60.0))) == older.name
    assert clock.monotonic_s() == 0.0


def test_one_that_vanishes_after_the_listing_is_passed_over(tmp_path: Path) -> None:
    older, newest = write_checkpoint(tmp_path, 100), write_checkpoint(tmp_path, 200)
    found = survey(LocalStorage(), tmp_path, "auto")
    shutil.rmtree(newest)
    choice = resolve(
        lambda entry, level: examine(LocalStorage(), tmp_path, entry, level),
        found,
        OPEN,
        suspects=frozenset(),
        once_valid=False,
        at_most_step=None,
        needs=Needs(),
    )
    assert name_of(choice) == older.name
    assert why(choice)[200] == (Validity.INCOMPLETE, "is gone")


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotTell, match="Not a directory"):
        ask(tmp_path / "file")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(CannotTell):
        ask(tmp_path / "loop")


def test_a_hundred_thousand_torn_ones_do_not_take_forever() -> None:
    """The rule itself, without a disk: what is seen grows, and must not be gone over again for each."""
    names = [layout.committed_name(step, "run-a", "1.0") for step in range(100_000)]
    began = time.process_time()
    entries, _ = select.acceptable(survey_names(names, "auto"), OPEN, None)
    seen = [Checked(entry, entry.name, Validity.CORRUPT, None, "torn") for entry in entries]
    assert select.decide(seen, frozenset(), once_valid=False).outcome is Outcome.HOLD
    assert time.process_time() - began < 20.0


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"schema": 1, "state": "loading", "path": "/c/NAME"}, Load((1, 0), "NAME", "loading")),
        ({"state": "failed", "path": "/c/NAME/"}, Load((1, 0), "NAME", "failed")),
        ({"state": "loaded", "path": "NAME"}, Load((1, 0), "NAME", "loaded")),
        ({"state": "dreaming", "path": "/c/NAME"}, None),
        ({"state": ["loading"], "path": "/c/NAME"}, None),
        ({"state": "loading", "path": None}, None),
        ({}, None),
        (None, None),
        ([], None),
        ("loading", None),
    ],
)
def test_what_a_load_file_says(raw: object, expected: Load | None) -> None:
    assert load_of((1, 0), raw) == expected


def test_an_attempt_that_died_loading_makes_a_suspect_until_another_loads_it() -> None:
    died = [Load((1, 0), "x", "loading"), Load((2, 0), "y", "failed"), Load((3, 0), "z", "loading")]
    assert suspects(died, (3, 0)) == {"x", "y"}  # ours is not over yet
    assert suspects(died, (4, 0)) == {"x", "y", "z"}
    assert suspects([*died, Load((2, 1), "x", "loaded")], (4, 0)) == {"y", "z"}
    assert suspects([Load((1, 0), "x", "loaded"), Load((1, 0), "x", "failed")], (2, 0)) == {"x"}  # another rank failed
