"""What a retention policy lets go: never the newest two valid ones, never what is not a whole checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fleetctl.checkpoint import remove as remove_module
from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.model import Checked, Entry, Fence, Level, Validity
from fleetctl.checkpoint.pointers import pointed
from fleetctl.checkpoint.prune import carry_out, plan_folder
from fleetctl.checkpoint.retention import Keep, Plan, plan
from fleetctl.checkpoint.select import as_in_progress
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.checkpoint.survey import survey
from fleetctl.checkpoint.trash import delete
from fleetctl.errors import CannotTell
from fleetctl.units import Duration
from tests.checkpoints import write_checkpoint

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def one(step: int, *, age: timedelta = 24 * HOUR, run_id: str = "run-a", **more: object) -> Checked:
    entry = Entry(f"step-{step}-{run_id}", step, run_id, (1, 0) if run_id else (0, 0))
    facts: dict[str, object] = {
        "validity": Validity.VALID,
        "level": Level.STRUCTURE,
        "reason": "",
        "saved_at": NOW - age,
        "touched_at": NOW - age,
        **more,
    }
    return Checked(entry=entry, name=entry.name, **facts)  # type: ignore[arg-type]


def ask(found: list[Checked], last: int = 2, every: Duration | None = None, **more: object) -> Plan:
    given: dict[str, object] = {"run_id": "run-a", "now": NOW, "may_be_written": True, **more}
    return plan(found, Keep(last, every), **given)  # type: ignore[arg-type]


def steps(made: Plan) -> list[int]:
    return [found.entry.training_step for found in made.removed if found.entry is not None]


def test_the_newest_stay_and_older_ones_go() -> None:
    made = ask([one(step) for step in (10, 30, 20, 40, 50)], last=3)
    assert steps(made) == [20, 10]
    assert made.guard == ("step-50-run-a", "step-40-run-a")
    assert [(verdict.found.name, verdict.reason) for verdict in made.verdicts if not verdict.removed] == [
        (f"step-{step}-run-a", "one of the newest 3") for step in (50, 40, 30)
    ]


@pytest.mark.parametrize("last", [-1, 0, 1, 2])
def test_never_the_newest_two_valid_ones(last: int) -> None:
    damaged = one(50, validity=Validity.CORRUPT, reason="cut")
    assert steps(ask([one(10), one(20), one(30), one(40), damaged], last=last)) == [20, 10]


@pytest.mark.parametrize("validity", [validity for validity in Validity if validity is not Validity.VALID])
def test_what_is_not_valid_is_for_a_person_and_takes_no_place(validity: Validity) -> None:
    made = ask([one(10, validity=validity), one(20), one(30), one(40, validity=validity), one(15)])
    assert steps(made) == [15]


def test_of_older_ones_one_in_every_so_long_is_kept_and_kept_again() -> None:
    found = [one(step, age=(100 - step) * HOUR) for step in range(0, 101, 2)]
    made = ask(found, last=3, every=Duration(86_400))
    kept = [verdict.found for verdict in made.verdicts if not verdict.removed]
    assert [found.entry.training_step for found in kept if found.entry] == [100, 98, 96, 72, 48, 24, 0]
    assert steps(ask(kept, last=3, every=Duration(86_400))) == []
    later = [*kept, *[one(step, age=(100 - step) * HOUR) for step in range(102, 125, 2)]]
    after = [verdict.found for verdict in ask(later, last=3, every=Duration(86_400)).verdicts if not verdict.removed]
    assert [found.entry.training_step for found in after if found.entry] == [124, 122, 120, 96, 72, 48, 24, 0]


def test_other_things_that_stay() -> None:
    found = [one(step) for step in (50, 40)]
    stays = [
        one(5, run_id="run-b"),
        one(6, saved_at=None),
        one(7, resumable=False),
        one(8, run_id="", touched_at=NOW - timedelta(minutes=9)),
        one(9, run_id="", touched_at=None),
        one(10),
        one(11),
    ]
    made = ask([*found, *stays], tagged={"step-10-run-a"}, used={"step-11-run-a"})
    assert steps(made) == []
    assert [verdict.reason for verdict in made.verdicts] == [
        "one of the newest 2",
        "one of the newest 2",
        "in use",
        "tagged",
        "it may still be being written",
        "it may still be being written",
        "weights alone: for a person to remove",
        "not known when it was saved",
        "of run run-b",
    ]


def test_a_frameworks_checkpoint_that_may_be_being_written_takes_no_place_among_the_newest() -> None:
    young = one(50, run_id="", touched_at=NOW)
    assert steps(ask([young, one(40), one(30), one(20)])) == [20]
    assert steps(ask([young, one(40), one(30), one(20)], may_be_written=False)) == [30, 20]


def test_a_folder_named_by_hand_has_checkpoints_of_any_run() -> None:
    assert steps(ask([one(5, run_id="run-b"), one(6), one(7), one(8)], run_id="")) == [6, 5]


@pytest.mark.parametrize(
    ("facts", "progresses"),
    [
        ({"validity": Validity.INCOMPLETE, "level": None}, True),
        ({"validity": Validity.CORRUPT, "level": Level.NAMES}, True),
        ({"validity": Validity.CORRUPT, "level": Level.STRUCTURE}, False),  # it is its content: nobody writes that late
        ({"validity": Validity.INCOMPLETE, "level": None, "touched_at": NOW - timedelta(minutes=11)}, False),
        ({"validity": Validity.INCOMPLETE, "level": None, "run_id": "run-a"}, False),
        ({"validity": Validity.UNKNOWN, "level": None}, False),
        ({"validity": Validity.VALID}, False),
    ],
)
def test_what_a_framework_may_be_writing_is_not_broken(facts: dict[str, object], progresses: bool) -> None:
    found = one(10, **{"run_id": "", "touched_at": NOW - timedelta(minutes=9), "reason": "cut", **facts})  # type: ignore[arg-type]
    seen = as_in_progress(found, NOW)
    assert (seen.validity is Validity.IN_PROGRESS) == progresses
    assert seen.reason == ("it may be being written: cut" if progresses else "cut")


def look(folder: Path, keep: Keep, fence: Fence | None = None) -> Plan:
    storage = LocalStorage()
    return plan_folder(
        lambda entry, level: examine(storage, folder, entry, level),
        folder,
        survey(storage, folder, "auto"),
        fence or Fence.open("run-a"),
        keep,
        run_id="run-a",
        now=NOW,
        may_be_written=False,
    )


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_they_are_removed_and_nothing_else_is(tmp_path: Path) -> None:
    folder, outside = tmp_path / "ckpt", tmp_path / "outside"
    made = {step: write_checkpoint(folder, step) for step in (10, 20, 30, 40)}
    write_checkpoint(outside, 5)
    (folder / "notes").write_text("mine")
    (made[10] / "link").symlink_to(outside)
    (folder / ".keep").mkdir()
    (folder / ".keep" / made[20].name).touch()
    plan_ = look(folder, Keep(2))
    assert carry_out(folder, plan_) == (made[10].name,)
    assert names(folder) == {made[20].name, made[30].name, made[40].name, "notes"}
    assert list((folder / ".trash").iterdir()) == []
    assert len(names(outside)) == 1
    assert carry_out(folder, look(folder, Keep(2))) == ()


def test_behind_the_fence_nothing_is_removed(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        write_checkpoint(tmp_path, step)
    assert look(tmp_path, Keep(2), Fence("run-a", frozenset(), (2, 0))).verdicts == ()


@pytest.mark.parametrize("moment", range(8))
def test_an_interruption_leaves_each_one_whole_or_gone(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [write_checkpoint(tmp_path, step) for step in (10, 20, 30, 40)]
    before = look(tmp_path, Keep(2))

    class Killed(BaseException):
        pass

    calls = iter(range(100))

    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            if next(calls) == moment:
                raise Killed
            return real(*args, **more)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", dying(os.rename))
        patched.setattr(os, "fsync", dying(os.fsync))
        patched.setattr(remove_module, "delete", dying(delete))
        if moment < 6:
            with pytest.raises(Killed):
                carry_out(tmp_path, before)
        else:
            carry_out(tmp_path, before)
    storage = LocalStorage()
    for entry in survey(storage, tmp_path, "auto").entries:
        assert examine(storage, tmp_path, entry, Level.CONTENT).level is Level.CONTENT
    assert {made[2].name, made[3].name} <= names(tmp_path)
    carry_out(tmp_path, look(tmp_path, Keep(2)))
    assert list((tmp_path / ".trash").iterdir()) == []
    assert names(tmp_path) == {made[2].name, made[3].name}


def test_nothing_is_removed_once_one_of_the_newest_is_gone(tmp_path: Path) -> None:
    made = [write_checkpoint(tmp_path, step) for step in (10, 20, 30, 40)]
    before = look(tmp_path, Keep(2))
    made[3].rename(tmp_path / "elsewhere")
    with pytest.raises(CannotTell, match="one of the newest valid ones, is gone"):
        carry_out(tmp_path, before)
    assert made[0].exists()


def test_what_another_removed_meanwhile_is_no_trouble(tmp_path: Path) -> None:
    made = [write_checkpoint(tmp_path, step) for step in (10, 20, 30, 40)]
    before = look(tmp_path, Keep(2))
    made[0].rename(tmp_path / "elsewhere")
    assert carry_out(tmp_path, before) == (made[1].name,)


def test_a_trash_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    folder, outside = tmp_path / "ckpt", tmp_path / "outside"
    made = [write_checkpoint(folder, step) for step in (10, 20, 30)]
    outside.mkdir()
    (folder / ".trash").symlink_to(outside)
    with pytest.raises(CannotTell):
        carry_out(folder, look(folder, Keep(2)))
    assert made[0].exists()


def test_a_very_long_name_fits_into_the_trash(tmp_path: Path) -> None:
    long = "r" * 80
    made = [write_checkpoint(tmp_path, step, run_id=long) for step in (10, 20, 30)]
    storage = LocalStorage()
    entry = survey(storage, tmp_path, "auto").entries
    gone = [examine(storage, tmp_path, one, Level.STRUCTURE) for one in entry if one.training_step == 10]
    assert remove_module.remove(tmp_path, gone, ()) == (made[0].name,)


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("latest", "global_step20", "global_step20"),
        ("latest", "global_step20\n", "global_step20"),
        ("latest.txt", "20", "20"),
        ("latest_checkpointed_iteration.txt", "20", "iter_0000020"),
        ("latest_checkpointed_iteration.txt", "release", "release"),
    ],
)
def test_what_a_pointer_names(name: str, text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert pointed(tmp_path) == {named}


def test_what_links_name(tmp_path: Path) -> None:
    (tmp_path / "ep1-ba20").mkdir()
    (tmp_path / "latest-rank0.pt").symlink_to("ep1-ba20/__0_0.distcp")
    (tmp_path / "best").symlink_to(tmp_path / "ep1-ba20")
    (tmp_path / "far").symlink_to("/etc")
    assert "ep1-ba20" in pointed(tmp_path)


def test_a_pointer_that_cannot_be_read_lets_nothing_go(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        write_checkpoint(tmp_path, step)
    (tmp_path / "latest").mkdir()
    with pytest.raises(CannotTell):
        look(tmp_path, Keep(2))
