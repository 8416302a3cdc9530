"""What a deed is told and answers, and the word that it leaves, without a Slurm."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fleetctl.errors import RunDirError
from fleetctl.health.decide import MOST_REASON, PREFIX
from fleetctl.recovery import say
from fleetctl.recovery.act import needs, seat_of
from fleetctl.recovery.act_nodes import reason_of
from fleetctl.recovery.model import Action, Deed, Outcome
from fleetctl.recovery.order import Answer, Order, Seat, Start, note_of, run_of, start_of
from fleetctl.recovery.policy import Mode
from fleetctl.recovery.stop import stopped
from fleetctl.recovery.wire import read, written
from fleetctl.rundir import files
from fleetctl.rundir.words import Word
from fleetctl.slurm.model import AdminLevel, GpuStyle, MemoryStyle
from tests.unit.clocks import START

ODD = "a\x00b\udc80 \u2620\n\u2028"
SEAT = Seat("/runs", "me", "here", "c", "/py", GpuStyle.GRES, MemoryStyle.PER_CPU, 1001, ("/t",), True, 10.0)


def word(**changes: object) -> Word:
    given = Word("r-1", None, START, "daemon", "why", 2, 1, at_most_step=500, suspects=("a",))
    return msgspec.structs.replace(given, **changes)


def action(deed: Deed = Deed.ROLL_BACK, key: str = "r-1", **more: object) -> Action:
    return Action(deed, key, "c/7/0", "loss is NaN", "nan", **more)  # type: ignore[arg-type]


def test_an_order_survives_the_way_whatever_users_wrote_in_one_line() -> None:
    order = Order(
        action(Deed.EXCLUDE, f"r-1{ODD}", nodes=(ODD,), suspects=(ODD,), at_most_step=3),
        Mode.OPERATOR,
        SEAT,
        path=f"/runs/{ODD}",
        attempts=1,
        wishes=2,
        deadline_s=12.5,
        ours=("n1",),
        look_only=True,
    )
    text = written(order)
    assert text.isascii()
    assert "\n" not in text
    assert read(text, Order) == order
    answer = Answer(Outcome.DONE, ODD, ("n1",))
    assert read(written(answer), Answer) == answer


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"outcome": "splendid"}', "nonsense"])
def test_what_is_no_answer_is_a_mistake(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(text, Answer)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("c/7/0", Start("c", 7, 0)),
        ("a/b/12/3", Start("a/b", 12, 3)),
        ("c/7", None),
        ("", None),
        ("c/7/x", None),
        ("c/-7/0", None),
        ("c/\u0667/0", None),
        ("c//0", None),
    ],
)
def test_a_start_names_one_start_of_one_job(text: str, start: Start | None) -> None:
    assert start_of(text) == start


def test_a_key_names_a_run_or_one_element_of_it() -> None:
    assert run_of("r-1") == ("r-1", None)
    assert run_of("r-1/3") == ("r-1", 3)
    assert run_of("") == ("", None)
    assert note_of("r-1/3") == "excluded/r-1/3"


# The word


def test_the_first_word_says_what_the_action_says() -> None:
    found = say.word_of(action(at_most_step=300, suspects=("b",)), None, 2, 1, START)
    assert found == word(why="loss is NaN", at_most_step=300, suspects=("b",))


@pytest.mark.parametrize(
    ("before", "step", "suspects", "hold"),
    [
        (word(), 300, ("a", "b"), False),
        (word(at_most_step=200), 200, ("a", "b"), False),
        (word(hold=True), 300, ("a", "b"), True),
        (word(attempts=1, hold=True, at_most_step=200), 300, ("a", "b"), False),  # that start has been
        (word(wishes=0, hold=True, at_most_step=200), 300, ("b",), False),  # a person has overruled it
        (word(run_id="r-2", at_most_step=200), 300, ("b",), False),
        (word(task=0, at_most_step=200), 300, ("b",), False),
    ],
)
def test_a_word_joins_what_still_counts(before: Word, step: int, suspects: tuple[str, ...], hold: bool) -> None:
    found = say.word_of(action(at_most_step=300, suspects=("b",)), before, 2, 1, START)
    assert (found.at_most_step, found.suspects, found.hold) == (step, suspects, hold)
    assert (found.attempts, found.wishes) == (2, 1)


def test_a_hold_keeps_the_step_that_was_said_for_the_same_start() -> None:
    found = say.word_of(action(Deed.HOLD), word(), 2, 1, START)
    assert (found.hold, found.at_most_step, found.suspects) == (True, 500, ("a",))


def test_a_word_has_a_bounded_number_of_suspects_the_newest() -> None:
    before = word(suspects=tuple(f"s{number}" for number in range(300)))
    found = say.word_of(action(suspects=("newest",)), before, 2, 1, START)
    assert len(found.suspects) == 200
    assert found.suspects[-1] == "newest"


def test_what_was_said_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "tasks" / "3" / "word.json"
    one = action(key="r-1/3", at_most_step=300, suspects=("a",))
    assert say.see(path, one).outcome is Outcome.FAILED
    assert say.say(path, one, 2, 1, START).outcome is Outcome.DONE
    assert say.see(path, action(key="r-1/3", at_most_step=400)).outcome is Outcome.DONE  # less is within it
    assert say.see(path, action(key="r-1/3", at_most_step=200)).outcome is Outcome.FAILED
    assert say.see(path, action(key="r-1/3", suspects=("b",))).outcome is Outcome.FAILED
    assert say.see(path, action(Deed.HOLD, "r-1/3")).outcome is Outcome.FAILED
    assert [each.name for each in path.parent.iterdir()] == ["word.json"]
    for damage in (b"", b"{}", b"\xff", b"[" * 100_000):
        path.write_bytes(damage)
        assert say.read(path) is None
        assert say.say(path, one, 2, 1, START).outcome is Outcome.DONE


def test_the_sites_word_is_named_after_the_run_and_its_user() -> None:
    assert say.sites_place("/words", "r-1", "me") == Path("/words/me:r-1.json")
    assert say.sites_place("/words", "r-1/3", "me") == Path("/words/me:r-1.3.json")


def test_a_word_that_cannot_be_read_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "word.json"
    say.say(path, action(Deed.HOLD), 2, 1, START)

    def bad(_: str) -> object:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(files, "read_json", bad)
        with pytest.raises(RunDirError, match="Input/output"):
            say.say(path, action(at_most_step=3), 2, 1, START)
        assert say.see(path, action(Deed.HOLD)).outcome is Outcome.FAILED
    assert say.see(path, action(Deed.HOLD)).outcome is Outcome.DONE, "the hold stands"


def test_another_users_word_is_not_said_again(tmp_path: Path) -> None:
    before = word(hold=True, user="mallory")
    assert not say.word_of(action(), before, 2, 1, START, "me").hold
    assert say.word_of(action(), word(hold=True, user="me"), 2, 1, START, "me").hold


# Rights, reasons, and the switch


@pytest.mark.parametrize(
    ("deed", "owner", "operator"),
    [
        (Deed.REQUEUE, AdminLevel.NONE, AdminLevel.OPERATOR),
        (Deed.EXCLUDE, AdminLevel.NONE, AdminLevel.OPERATOR),
        (Deed.RESUBMIT, AdminLevel.NONE, None),
        (Deed.HOLD, AdminLevel.NONE, AdminLevel.NONE),
        (Deed.ROLL_BACK, AdminLevel.NONE, AdminLevel.NONE),
        (Deed.TELL, AdminLevel.NONE, AdminLevel.NONE),
        (Deed.DRAIN, AdminLevel.ADMINISTRATOR, AdminLevel.ADMINISTRATOR),
        (Deed.SET_DOWN, AdminLevel.ADMINISTRATOR, AdminLevel.ADMINISTRATOR),
    ],
)
def test_each_deed_has_the_level_that_it_needs(deed: Deed, owner: AdminLevel, operator: AdminLevel | None) -> None:
    assert needs(deed, Mode.OWNER) is owner
    assert needs(deed, Mode.OPERATOR) is operator


def test_a_reason_is_one_line_that_says_whose_it_is() -> None:
    said = reason_of(f'{ODD} "x" = ' + "y" * 500)
    assert said.startswith(PREFIX)
    assert said.isascii()
    assert said.isprintable()
    assert len(said) == MOST_REASON
    assert "=" not in said


def test_the_file_stops_it_whatever_it_is_and_so_does_what_cannot_be_looked_at(tmp_path: Path) -> None:
    assert stopped(None) == ""
    stop = tmp_path / "stop"
    assert stopped(stop) == ""
    stop.symlink_to("nowhere")
    assert stopped(stop) == f"{stop} is there"
    (tmp_path / "file").touch()
    assert "cannot be told" in stopped(tmp_path / "file" / "stop")


def test_every_field_of_a_seat_comes_from_the_site() -> None:
    assert {*Seat.__struct_fields__} == {
        *("root", "user", "host", "cluster", "python", "gpu_style", "memory_style", "max_array_size"),
        *("template_dirs", "comments_proved", "message_timeout_s"),
    }
    assert seat_of.__doc__
