"""What a retention policy lets go: never the newest two valid ones, never what is not a whole checkpoint."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from fleetctl.checkpoint import remove as remove_module
from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.model import Checked, Entry, Fence, Level, Validity
from fleetctl.checkpoint.pointers import pointed
from fleetctl.checkpoint.prune import carry_out, plan_folder
from fleetctl.checkpoint.retention import Keep, Plan, Shunned, plan
from fleetctl.checkpoint.select import as_in_progress
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.checkpoint.survey import is_guess, survey
from fleetctl.checkpoint.trash import delete
from fleetctl.errors import CannotTell
from fleetctl.units import Duration
from tests.checkpoints import write_checkpoint
from tests.formats.accelerate import write_state
from tests.formats.dcp import write_dcp
from tests.formats.deepspeed import write_universal, write_zero
from tests.formats.huggingface import write_trainer
from tests.formats.lightning import write_file, write_folder
from tests.formats.megatron import write_dist, write_legacy
from tests.formats.orbax import write_orbax
from tests.formats.torch import state, torch_bytes, write_torch
from tests.formats.torchtitan import write_torchtitan

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def one(step: int, *, age: timedelta = 24 * HOUR, run_id: str = "run-a", **more: object) -> Checked:
    name = f"step-{step}-{run_id}" if run_id else f"checkpoint-{step}"
    entry = Entry(name, step, run_id, (1, 0) if run_id else (0, 0))
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
    found = [one(50, run_id="", touched_at=NOW), *[one(step, run_id="") for step in (40, 30, 20)]]
    assert steps(ask(found)) == [20]
    assert steps(ask(found, may_be_written=False)) == [30, 20]


@pytest.mark.parametrize(
    ("shunned", "reason"),
    [
        (
            Shunned(suspects=frozenset({"step-50-run-a"})),
            "an attempt died while it loaded this: for a person to remove",
        ),
        (Shunned(passed_over=frozenset({"step-50-run-a"})), "a start passed it over: for a person to remove"),
        (Shunned(at_most_step=45), "after step 45, the last one wanted: for a person to remove"),
    ],
)
def test_what_no_start_takes_stays_and_takes_no_place(shunned: Shunned, reason: str) -> None:
    made = ask([one(step) for step in (10, 20, 30, 40, 50)], shunned=shunned)
    assert steps(made) == [20, 10]
    assert made.verdicts[0].reason == reason
    assert made.guard == ("step-40-run-a", "step-30-run-a")


def attempts_own(step: int, attempt: tuple[int, int], age: timedelta = HOUR) -> Checked:
    found = one(step, age=age)
    assert found.entry is not None
    return replace(found, entry=replace(found.entry, attempt=attempt))


def test_after_a_start_that_went_back_the_new_progress_stays_whatever_is_known_of_the_rest() -> None:
    """300 and 200 killed whoever loaded them, and nobody told: 4.0 began at 100. Its host's clock is an hour slow."""
    old = [attempts_own(step, (1, 0)) for step in (90, 100, 200, 300)]
    new = [attempts_own(step, (4, 0), 2 * HOUR) for step in (110, 120, 130)]
    made = ask([*old, *new], used={"step-100-run-a"})
    assert steps(made) == [110, 90]
    assert [verdict.reason for verdict in made.verdicts[2:4]] == ["one of the 2 written last"] * 2
    assert made.guard == ("step-300-run-a", "step-200-run-a", "step-130-run-a", "step-120-run-a")


def test_of_a_framework_what_was_written_last_stays_too() -> None:
    old = [one(step, run_id="", age=(1000 - step) * HOUR) for step in (90, 100, 200, 300)]
    new = [one(step, run_id="", age=(200 - step) * HOUR) for step in (110, 120, 130)]
    assert steps(ask([*old, *new], may_be_written=False)) == [110, 100, 90]


def test_a_step_that_may_be_any_number_in_a_name_lets_nothing_go() -> None:
    def named(name: str, step: int, inside: int | None) -> Checked:
        return replace(one(step, run_id="", training_step=inside), entry=Entry(name, step), name=name)

    guess, said, told = named("run-7", 7, None), named("run-9", 9, 9), named("ckpt_8.pt", 8, None)
    found = [one(50), one(40), guess, said, told]
    made = ask(found, guessed={each.name for each in found if is_guess(each)})
    assert steps(made) == [9, 8]
    assert made.verdicts[-1].reason == "its training step is a guess: for a person to remove"


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


MAKERS: dict[str, Callable[[Path], Path]] = {
    "own": lambda at: write_checkpoint(at, 10),
    "huggingface": lambda at: write_trainer(at, 10),
    "accelerate": lambda at: write_state(at, 10),
    "lightning": write_file,
    "lightning folder": write_folder,
    "deepspeed": lambda at: write_zero(at, 10),
    "deepspeed universal": lambda at: write_universal(at, 10),
    "megatron": lambda at: write_dist(at, 10),
    "megatron legacy": lambda at: write_legacy(at, 10),
    "orbax": write_orbax,
    "torchtitan": write_torchtitan,
    "torch_dcp": lambda at: write_dcp(at / "10"),
    "torch": lambda at: write_torch(at / "ckpt_10.pt"),
}


@pytest.mark.parametrize("changed", [False, True], ids=["as found", "written to"])
@pytest.mark.parametrize("form", MAKERS)
def test_what_was_written_to_since_it_was_looked_at_stays(form: str, changed: bool, tmp_path: Path) -> None:
    folder, storage = tmp_path / "ckpt", LocalStorage()
    folder.mkdir()
    path = MAKERS[form](folder)
    (entry,) = (entry for entry in survey(storage, folder, "auto").entries if entry.name == path.name)
    found = examine(storage, folder, entry, Level.STRUCTURE)
    assert found.validity is Validity.VALID
    assert found.touched_at is not None
    if changed:
        written = max(path.iterdir()) if path.is_dir() else path
        later_s = found.touched_at.timestamp() + 0.01
        os.utime(written, (later_s, later_s))
    assert remove_module.remove(folder, [found], ()) == (() if changed else (path.name,))
    assert path.exists() == changed


def test_the_newest_that_was_planned_as_the_oldest_stays(tmp_path: Path) -> None:
    for name, step in (("last.pt", 90), ("ckpt_100.pt", 100), ("ckpt_200.pt", 200)):
        write_torch(tmp_path / name, torch_bytes(state(step)))
        os.utime(tmp_path / name, (step, step))
    made = look(tmp_path, Keep(2))
    assert [found.name for found in made.removed] == ["last.pt"]
    write_torch(tmp_path / "last.pt", torch_bytes(state(250)))
    assert carry_out(tmp_path, made) == ()


def test_what_became_a_link_stays(tmp_path: Path) -> None:
    made = [write_checkpoint(tmp_path, step) for step in (10, 20, 30)]
    before = look(tmp_path, Keep(2))
    made[0].rename(tmp_path / "elsewhere")
    made[0].symlink_to("elsewhere")
    os.utime(made[0], (1, 1), follow_symlinks=False)
    assert carry_out(tmp_path, before) == ()
    assert made[0].is_symlink()


def test_once_it_is_not_permitted_nothing_more_goes(tmp_path: Path) -> None:
    made = [write_checkpoint(tmp_path, step) for step in (10, 20, 30, 40, 50)]
    answers = iter([True, False, True])
    there: list[bool] = []

    @contextlib.contextmanager
    def permit() -> Iterator[bool]:
        yield next(answers)
        there.append(made[0].exists())

    assert carry_out(tmp_path, look(tmp_path, Keep(2)), permit=permit) == (made[0].name,)
    assert names(tmp_path) == {path.name for path in made[1:]}
    assert there == [False, False], "the first went while it was permitted"


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


def test_a_link_may_lead_through_a_longer_path(tmp_path: Path) -> None:
    folder = tmp_path / "real" / "ckpt"
    folder.mkdir(parents=True)
    (tmp_path / "short").symlink_to("real")
    (folder / "latest").symlink_to(folder / "step-10" / "model.pt")
    (folder / "best").symlink_to(f"../ckpt/step-20/{'x' * 100}/..")
    assert {"step-10", "step-20"} <= pointed(folder)
    assert {"step-10", "step-20"} <= pointed(tmp_path / "short" / "ckpt")


@pytest.mark.parametrize("name", ["latest", "latest.txt", "latest_checkpointed_iteration.txt"])
def test_a_folder_or_a_link_is_no_pointer(name: str, tmp_path: Path) -> None:
    made = [write_checkpoint(tmp_path, step) for step in (10, 20, 30, 40)]
    (tmp_path / name).symlink_to(made[1].name)
    assert [found.name for found in look(tmp_path, Keep(2)).removed] == [made[0].name]
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    assert [found.name for found in look(tmp_path, Keep(2)).removed] == [made[1].name, made[0].name]


def test_a_pointer_that_cannot_be_read_lets_nothing_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (10, 20, 30):
        write_checkpoint(tmp_path, step)

    def fails(*_: object) -> object:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("fleetctl.checkpoint.pointers.LocalStorage", lambda: SimpleNamespace(open=fails))
    with pytest.raises(CannotTell):
        look(tmp_path, Keep(2))
