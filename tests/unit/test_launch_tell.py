"""How a framework is told what to load: the words that it reads, and its pointer, which is never lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetctl.launch import tell
from fleetctl.launch.tell import Chosen, Pointer, arguments, plan_pointer, set_pointer
from fleetctl.spec.model import CheckpointFormat
from fleetctl.spec.rules import TOLD_BY_ARGUMENTS, TOLD_BY_POINTER

TRACKER = "latest_checkpointed_iteration.txt"


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("huggingface", ("--resume_from_checkpoint", "/c/it's $HOME/step 5")),
        ("accelerate", ("--resume_from_checkpoint", "/c/it's $HOME/step 5")),
        ("lightning", ("--ckpt_path", "/c/it's $HOME/step 5")),
        ("megatron", ("--ckpt-step", "5")),
        ("torchtitan", ("--checkpoint.load_step", "5")),
        ("deepspeed", ()),
        ("auto", ()),
    ],
)
def test_the_words_of_each_framework(form: str, words: tuple[str, ...]) -> None:
    chosen = Chosen("/c/it's $HOME/step 5", 5)
    assert arguments("arguments", form, chosen) == words
    assert arguments("arguments", form, None) == (), "nothing for a start from scratch"
    assert arguments("environment", form, chosen) == ()
    assert arguments("pointer", form, chosen) == ()


def test_the_spec_allows_what_there_is() -> None:
    chosen = Chosen("/c/5", 5)
    assert {form for form in CheckpointFormat if arguments("arguments", form, chosen)} == set(TOLD_BY_ARGUMENTS)
    assert set(tell._POINTERS) == set(TOLD_BY_POINTER)


def point(directory: Path, form: str, chosen: Chosen | None, attempt: str = "1.1") -> Pointer | None:
    planned = plan_pointer("pointer", form, directory, chosen, attempt)
    if planned is not None:
        set_pointer(directory, planned)
    return planned


def test_a_pointer_is_rewritten_and_its_old_text_kept(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("global_step200\n")
    point(tmp_path, "deepspeed", Chosen(f"{tmp_path}/global_step100", 100))
    assert (tmp_path / "latest").read_text() == "global_step100"
    assert (tmp_path / "latest.before-fleetctl-1.1").read_text() == "global_step200\n"
    assert sorted(os.listdir(tmp_path)) == ["latest", "latest.before-fleetctl-1.1"]


def test_megatrons_is_a_number(tmp_path: Path) -> None:
    assert point(tmp_path, "megatron", Chosen(f"{tmp_path}/iter_0000100", 100)) == Pointer(TRACKER, "100", None, None)
    assert (tmp_path / TRACKER).read_text() == "100"
    assert os.listdir(tmp_path) == [TRACKER]


def test_one_that_is_right_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("global_step100\n")
    before = (tmp_path / "latest").stat()
    assert point(tmp_path, "deepspeed", Chosen(f"{tmp_path}/global_step100", 100)) is None
    after = (tmp_path / "latest").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_it_is_moved_away_where_nothing_may_be_loaded(tmp_path: Path) -> None:
    """A framework would follow it to a save that was never finished."""
    (tmp_path / "latest").write_text("global_step200")
    assert point(tmp_path, "deepspeed", None, "1.0") == Pointer(
        "latest", None, "global_step200", "latest.before-fleetctl-1.0"
    )
    assert os.listdir(tmp_path) == ["latest.before-fleetctl-1.0"]
    assert point(tmp_path, "deepspeed", None, "1.0") is None
    assert point(tmp_path / "missing", "deepspeed", None) is None


def test_what_was_kept_is_never_overwritten(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "latest").write_text(f"old{number}")
        point(tmp_path, "deepspeed", Chosen(f"{tmp_path}/new", 1), "1.0")
    kept = ["latest.before-fleetctl-1.0", "latest.before-fleetctl-1.0-2", "latest.before-fleetctl-1.0-3"]
    assert [(tmp_path / name).read_text() for name in kept] == ["old0", "old1", "old2"]


@pytest.mark.parametrize("told", ["environment", "arguments"])
def test_it_is_touched_only_when_the_spec_asks(tmp_path: Path, told: str) -> None:
    (tmp_path / "latest").write_text("global_step200")
    assert plan_pointer(told, "deepspeed", tmp_path, None, "1.0") is None
    assert plan_pointer("pointer", "huggingface", tmp_path, None, "1.0") is None


def as_link(path: Path) -> None:
    path.symlink_to(path.parent.parent / "elsewhere")


def as_folder(path: Path) -> None:
    path.mkdir()


def as_fifo(path: Path) -> None:
    os.mkfifo(path)


def as_much(path: Path) -> None:
    path.write_bytes(bytes(5000))


@pytest.mark.parametrize("make", [as_link, as_folder, as_fifo, as_much])
def test_what_is_no_pointer_is_never_written_to(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "elsewhere").write_text("global_step200")
    directory = tmp_path / "ckpt"
    directory.mkdir()
    make(directory / "latest")
    for chosen in (None, Chosen(f"{directory}/global_step100", 100)):
        with pytest.raises(OSError, match=r"no file|more than 4096 bytes"):
            plan_pointer("pointer", "deepspeed", directory, chosen, "1.0")
    assert (tmp_path / "elsewhere").read_text() == "global_step200"
    assert os.listdir(directory) == ["latest"]


@pytest.mark.parametrize("name", ["a\nb", " a", "a\t"])
def test_a_name_that_no_pointer_can_hold_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="character"):
        plan_pointer("pointer", "deepspeed", tmp_path, Chosen(f"{tmp_path}/{name}", 1), "1.0")


def test_a_link_that_comes_between_is_replaced_and_not_followed(tmp_path: Path) -> None:
    directory, outside = tmp_path / "ckpt", tmp_path / "outside"
    directory.mkdir()
    outside.write_text("mine")
    planned = plan_pointer("pointer", "deepspeed", directory, Chosen(f"{directory}/global_step100", 100), "1.0")
    assert planned is not None
    (directory / "latest").symlink_to(outside)
    set_pointer(directory, planned)
    assert outside.read_text() == "mine"
    assert (directory / "latest").read_text() == "global_step100"
    assert not (directory / "latest").is_symlink()


@pytest.mark.parametrize("linked", [False, True])
def test_what_comes_to_lie_where_the_old_text_goes_is_not_overwritten(tmp_path: Path, linked: bool) -> None:
    directory, mine = tmp_path / "ckpt", tmp_path / "mine"
    directory.mkdir()
    mine.write_text("mine")
    (directory / "latest").write_text("global_step200")
    planned = plan_pointer("pointer", "deepspeed", directory, None, "1.0")
    assert planned is not None
    assert planned.kept is not None
    kept = directory / planned.kept
    kept.symlink_to(mine if linked else tmp_path / "new")
    with pytest.raises(FileExistsError):
        set_pointer(directory, planned)
    assert mine.read_text() == "mine"
    assert not (tmp_path / "new").exists()
    assert (directory / "latest").read_text() == "global_step200"


STEPS = ("open", "fsync", "rename", "unlink")


@pytest.mark.parametrize("call", STEPS)
@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("chosen", [None, "global_step100"])
def test_an_interruption_anywhere_leaves_a_whole_pointer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, at: int, chosen: str | None
) -> None:
    """The n-th call of one kind fails: the pointer says the old thing or the new one, and the old text is not lost."""
    (tmp_path / "latest").write_text("global_step200")
    to = None if chosen is None else Chosen(f"{tmp_path}/{chosen}", 100)
    planned = plan_pointer("pointer", "deepspeed", tmp_path, to, "1.0")
    assert planned is not None
    real, count = getattr(os, call), 0

    def failing(*args: object, **more: object) -> object:
        nonlocal count
        count += 1
        if count == at + 1:
            raise OSError(28, "No space left on device")
        return real(*args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        try:
            set_pointer(tmp_path, planned)
        except OSError:
            failed = True
        else:
            failed = False
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    pointer = found.pop("latest", None)
    assert pointer in ("global_step200", chosen)
    assert failed or pointer == chosen
    if pointer != "global_step200":
        assert found["latest.before-fleetctl-1.0"] == "global_step200"
    assert not [name for name in found if name.startswith(".latest.")] or call == "unlink"
    point(tmp_path, "deepspeed", to, "1.0")  # the next try ends as it should
    assert ((tmp_path / "latest").read_text() if chosen else (tmp_path / "latest").exists()) == (chosen or False)
