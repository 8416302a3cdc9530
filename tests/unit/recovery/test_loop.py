"""The daemon's loop, with a journal, a Slurm and a clock of ours."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec
import pytest

from fleetctl.errors import DatabaseError, LeaseLost, SlurmUnreachable
from fleetctl.recovery.guarded import decided
from fleetctl.recovery.loop import Ledger, Loop, Parts
from fleetctl.recovery.metrics import Numbers
from fleetctl.recovery.model import (
    Action,
    Decision,
    Deed,
    Done,
    Memory,
    Outcome,
    RunSeen,
    Snapshot,
    Verdict,
)
from fleetctl.recovery.notify import Channel, Notice, Teller, Way
from fleetctl.recovery.passes import Passed, kept
from fleetctl.recovery.sd_notify import Manager
from tests.unit.clocks import START, StillClock

REQUEUE = Action(Deed.REQUEUE, "r-1", "c/7/0", "its head is gone", "orphan")
HOLD = Action(Deed.HOLD, "r-2", "c/8/0", "it fails at once", "quick failures")
SEEN = Snapshot(at=START, cluster="c", runs=(), nodes=(), findings=(), maintenance=())


class World:
    """What the loop is given; every call leaves a word in `log`."""

    def __init__(self, *actions: Action) -> None:
        self.log: list[str] = []
        self.said: list[str] = []
        self.saved: list[Mapping[str, Any]] = []
        self.notes: dict[str, str] = {}
        self.delivered: list[Notice] = []
        self.clock = StillClock()
        self.numbers = Numbers()
        self.actions = actions
        self.snapshot = SEEN
        self.leads = True
        self.look_again_s = 30.0
        self.stopped = ""
        self.fails: dict[str, Exception] = {}
        self.during: Callable[[Action], None] = lambda _: None
        self.trouble = ""

    def parts(self, *, acts: bool = True, channels: tuple[Channel, ...] = ()) -> Parts:
        return Parts(
            cluster="c",
            scope="user me",
            acts=acts,
            ledger=Ledger(
                lead=lambda: self._did("lead", self.leads),
                other=lambda: "h:1:x",
                release=lambda: self._did("release", None),
                memory=lambda: self._did("memory", Memory(notes=dict(self.notes))),
                settle=lambda: self._did("settle", ()),
                remember=self._remember,
                observe=lambda action: self._did(f"observe {action.deed}", None),
                recovered=lambda found: self._did(f"recovered {found.interruption.key}", None),
                save=self._save,
            ),
            observe=lambda memory, at: self._did("see", self.snapshot),
            decide=lambda snapshot, memory: self._did("decide", self._decision()),
            act=self._act,
            stopped=lambda: self.stopped,
            teller=Teller(channels, self._deliver),
            numbers=self.numbers,
            manager=Manager(""),
            clock=self.clock,
            say=self.said.append,
        )

    def _did(self, word: str, value: Any) -> Any:
        if word in self.fails:
            raise self.fails[word]
        self.log.append(word)
        return value

    def _decision(self) -> Decision:
        return Decision(self.actions, (Verdict("r-1", "orphan", "it is one"),), look_again_s=self.look_again_s)

    def _remember(self, decision: Decision, at: datetime) -> None:
        self._did("remember", None)
        self.notes.update(decision.notes)
        self.notes = {name: text for name, text in self.notes.items() if text}

    def _save(self, told: Mapping[str, Any]) -> None:
        self._did("save", None)
        self.saved.append(told)

    def _act(self, action: Action, run: RunSeen | None) -> Done:
        self._did(f"act {action.deed}", None)
        self.during(action)
        return Done(action, self.clock.now(), Outcome.DONE)

    def _deliver(self, channel: Channel, notice: Notice) -> str:
        self.delivered.append(notice)
        return self.trouble


MAIL = (Channel(Way.MAIL, "me"),)


def test_a_pass_remembers_before_it_acts_and_is_saved_last() -> None:
    world = World(REQUEUE, HOLD)
    Loop(world.parts()).once()
    assert world.log == ["lead", "settle", "memory", "see", "decide", "remember", "act requeue", "act hold", "save"]
    assert [one["outcome"] for one in world.saved[0]["actions"]] == ["done", "done"]


def test_without_act_it_is_written_down_what_would_be_done_and_nothing_is_done() -> None:
    world = World(REQUEUE)
    one = Loop(world.parts(acts=False)).once()
    assert not [word for word in world.log if word.startswith("act")]
    assert "observe requeue" in world.log
    assert one.done[0].outcome is Outcome.OBSERVED
    assert "would be done" in world.said[-1]


def test_a_daemon_that_does_not_lead_writes_and_does_nothing() -> None:
    world = World(REQUEUE)
    world.leads = False
    one = Loop(world.parts()).once()
    assert world.log == ["lead", "memory", "see", "decide"]
    assert "another daemon leads (h:1:x)" in one.standing_by


@pytest.mark.parametrize("source", ["lead", "memory", "see", "remember"])
@pytest.mark.parametrize("error", [DatabaseError("it is away"), SlurmUnreachable("no answer"), OSError(5, "EIO")])
def test_whatever_is_away_nothing_is_done_and_the_pass_says_so(source: str, error: Exception) -> None:
    world = World(REQUEUE)
    world.fails[source] = error
    one = Loop(world.parts()).once()
    assert one.is_blind
    assert not [word for word in world.log if word.startswith("act")]
    assert "saw nothing" in world.said[-1]
    assert world.numbers.value("passes_total", result="blind") == 1


@pytest.mark.parametrize("change", [{"runs": None}, {"failed": {"jobs": "no answer"}}])
def test_nothing_is_done_while_slurm_does_not_tell_of_its_jobs(change: dict[str, Any]) -> None:
    world = World(REQUEUE)
    world.snapshot = msgspec.structs.replace(SEEN, **change)
    one = Loop(world.parts()).once()
    assert one.is_blind
    assert one.done[0].outcome is Outcome.OBSERVED
    assert "act requeue" not in world.log


def test_the_stop_file_is_heeded() -> None:
    world = World(REQUEUE)
    world.stopped = "/etc/stop is there"
    one = Loop(world.parts()).once()
    assert "act requeue" not in world.log
    assert one.standing_by == "/etc/stop is there"


def test_a_lost_lease_ends_the_actions_of_this_pass() -> None:
    world = World(REQUEUE, HOLD)
    world.fails["act requeue"] = LeaseLost("it is another's")
    one = Loop(world.parts()).once()
    assert one.done == ()
    assert "act hold" not in world.log
    assert "save" not in world.log
    assert "it is another's" in one.trouble


def test_a_signal_ends_it_after_the_current_action() -> None:
    world = World(REQUEUE, HOLD)
    loop = Loop(world.parts())
    world.during = lambda _: loop.end(signal.SIGTERM, None)
    shown = list[Passed]()
    loop.forever(shown.append)
    assert [one.action for one in shown[0].done] == [REQUEUE]
    assert world.log[-2:] == ["save", "release"]
    assert "left to the next daemon" in shown[0].trouble


def test_a_second_ctrl_c_ends_it_at_once() -> None:
    world = World(REQUEUE, HOLD)
    loop = Loop(world.parts())

    def impatient(_: Action) -> None:
        loop.end(signal.SIGINT, None)
        loop.end(signal.SIGTERM, None)
        loop.end(signal.SIGINT, None)

    world.during = impatient
    with pytest.raises(KeyboardInterrupt):
        loop.once()
    assert "act hold" not in world.log


def test_a_second_sigterm_still_lets_the_action_end() -> None:
    world = World(REQUEUE, HOLD)
    loop = Loop(world.parts())

    def again(_: Action) -> None:
        loop.end(signal.SIGTERM)
        loop.end(signal.SIGTERM)

    world.during = again
    assert [one.action for one in loop.once().done] == [REQUEUE]


def _passes(world: World, count: int, every_s: float = 30.0) -> list[float]:
    """When so many passes began, in seconds."""
    loop, began = Loop(msgspec.structs.replace(world.parts(), every_s=every_s)), list[float]()

    def shown(one: Passed) -> None:
        began.append((one.at - START).total_seconds())
        if len(began) == count:
            loop.end()

    loop.forever(shown)
    return began


def test_it_looks_again_as_soon_as_the_decision_wants_it() -> None:
    world = World()
    assert _passes(world, 3) == [0, 30, 60]
    world.look_again_s = 5
    assert _passes(world, 3) == [60, 65, 70]
    world.look_again_s = 0
    assert _passes(world, 3) == [70, 71, 72]
    world.look_again_s = 300
    assert _passes(world, 3, every_s=10) == [72, 82, 92]


def test_while_nothing_can_be_seen_it_asks_less_often_but_never_too_late() -> None:
    world = World()
    world.fails["see"] = SlurmUnreachable("no answer")
    assert _passes(world, 6) == [0, 30, 90, 210, 330, 450]


def test_a_mistake_of_ours_is_no_pass_and_is_not_hidden() -> None:
    world = World(REQUEUE)
    world.fails["decide"] = KeyError("x")
    one = Loop(world.parts()).once()
    assert one.is_blind
    assert "internal error: KeyError: 'x' at test_loop.py:" in world.said[-1]
    assert "act requeue" not in world.log


def run(key: str) -> RunSeen:
    return RunSeen(key, key, None, "me", f"/runs/{key}", None, None, ())


def test_a_run_that_brings_a_mistake_to_light_does_not_take_the_others_recovery_away() -> None:
    def decide(snapshot: Snapshot, memory: Memory) -> Decision:
        assert snapshot.runs is not None
        keys = [one.key for one in snapshot.runs]
        if "evil" in keys:
            raise ValueError("day is out of range")
        return Decision((), tuple(Verdict(key, "healthy", "fine") for key in keys))

    snapshot = msgspec.structs.replace(SEEN, runs=(run("r-1"), run("evil"), run("r-2")))
    decision, said = decided(decide, snapshot, Memory())
    assert [(one.key, one.rule) for one in decision.verdicts] == [
        ("r-1", "healthy"),
        ("r-2", "healthy"),
        ("evil", "internal_error"),
    ]
    assert "evil" in said
    assert "day is out of range" in said


def test_a_mistake_that_no_run_alone_brings_about_is_no_decision() -> None:
    def decide(snapshot: Snapshot, memory: Memory) -> Decision:
        if len(snapshot.runs or ()) > 1:
            raise ValueError("two of them")
        return Decision((), ())

    with pytest.raises(ValueError, match="two of them"):
        decided(decide, msgspec.structs.replace(SEEN, runs=(run("r-1"), run("r-2"))), Memory())


def test_the_journal_keeps_of_many_verdicts_those_with_which_something_goes_on() -> None:
    verdicts = [{"run_id": f"r-{n}", "rule": "x", "why": "y", "quiet": n % 2 == 0} for n in range(1000)]
    told = kept({"verdicts": verdicts, "runs": 1000})
    assert len(told["verdicts"]) == 200
    assert not any(one["quiet"] for one in told["verdicts"])


def _close(loop: Loop) -> None:
    loop.close()


def test_a_person_is_told_once_a_day_of_the_same_thing() -> None:
    world = World(HOLD)
    loop = Loop(world.parts(channels=MAIL))
    loop.once()
    _close(loop)
    assert [notice.run for notice in world.delivered] == ["r-2"]
    assert [text.split()[0] for text in world.notes.values()] == ["sent"]
    again = Loop(world.parts(channels=MAIL))
    again.once()
    _close(again)
    assert len(world.delivered) == 1
    world.clock.sleep(90_000)
    later = Loop(world.parts(channels=MAIL))
    later.once()
    _close(later)
    assert len(world.delivered) == 2


def test_a_delivery_is_noted_by_a_later_pass_and_not_repeated_by_it() -> None:
    world = World(HOLD)
    loop = Loop(world.parts(channels=MAIL))
    deadline = time.monotonic() + 10
    while not world.notes:
        assert time.monotonic() < deadline
        loop.once()
    loop.once()
    _close(loop)
    assert len(world.delivered) == 1


def test_old_notes_about_notices_are_forgotten() -> None:
    world = World()
    world.notes = {"told x": "sent 2020-01-01T00:00:00+00:00", "excluded/r-1": "node2"}
    Loop(world.parts()).once()
    assert world.notes == {"excluded/r-1": "node2"}


def test_a_notice_that_failed_is_tried_again_by_a_later_daemon_and_then_given_up() -> None:
    world = World(HOLD)
    world.trouble = "no route to host"
    for _ in range(8):
        loop = Loop(world.parts(channels=MAIL))
        loop.once()
        _close(loop)
    assert len(world.delivered) == 5
    assert any("no route to host" in line for line in world.said)


def test_nobody_is_told_of_what_was_only_observed() -> None:
    world = World(HOLD)
    loop = Loop(world.parts(acts=False, channels=MAIL))
    loop.once()
    _close(loop)
    assert world.delivered == []


def test_the_numbers_of_a_pass() -> None:
    world = World(REQUEUE)
    Loop(world.parts()).once()
    text = world.numbers.text()
    assert f"fleetctl_daemon_last_pass_timestamp_seconds {START.timestamp():.0f}\n" in text
    assert 'fleetctl_daemon_actions_total{deed="requeue",outcome="done"} 1\n' in text
    assert 'fleetctl_daemon_runs{rule="orphan"} 1\n' in text
    assert "fleetctl_daemon_leader 1\n" in text
