"""A pass in one sentence and as JSON."""

from __future__ import annotations

import json

import msgspec
import pytest

from fleetctl.recovery import passes
from fleetctl.recovery.model import (
    Action,
    Advice,
    CauseClass,
    Decision,
    Deed,
    Done,
    Incident,
    Interruption,
    Outcome,
    RunSeen,
    Snapshot,
    Suspected,
    Verdict,
)
from fleetctl.recovery.passes import Passed, as_json, sentence
from tests.unit.clocks import START

RUN = RunSeen("r-1", "r-1", None, "me", "/runs/r-1", None, None, (), trouble="it hangs")
SEEN = Snapshot(START, "c", (RUN,), (), (), ())
EXCLUDE = Action(Deed.EXCLUDE, "r-1", "c/7/1", "it is kept off node2", "exclude", nodes=("node2",))
CAUSE = Suspected(CauseClass.NODE, Advice.ELSEWHERE, "record: the node was lost", "node2")
END = Interruption("r-1", "1.0", "c/7/0", START, (CAUSE,), "node: lost", ("node1", "node2"), 100)
QUIET = Verdict("r-1", "healthy", "attempt 1.0 is in step", is_quiet=True)
BUSY = Verdict("r-2", "begin_time", "it waits for Slurm's BeginTime")


def passed(
    decision: Decision, *done: Done, snapshot: Snapshot = SEEN, standing_by: str = "", trouble: str = ""
) -> Passed:
    return Passed(START, "c", "user me", 0.25, True, snapshot, decision, done, standing_by, trouble)


def test_a_quiet_pass_is_a_short_line() -> None:
    assert sentence(passed(Decision((), (QUIET,)))) == "1 run (1 not readable) in 0.2 s; nothing to do"


def test_what_is_waited_for_is_said() -> None:
    assert sentence(passed(Decision((), (QUIET, BUSY)))).endswith("; r-2: it waits for Slurm's BeginTime")


def test_what_happened_and_what_was_done_is_said() -> None:
    said = sentence(passed(Decision((EXCLUDE,), (), interruptions=(END,)), Done(EXCLUDE, START, Outcome.DONE)))
    assert "r-1 was interrupted (node: record: the node was lost)" in said
    assert "exclude node2 for r-1 done: it is kept off node2" in said


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome.OBSERVED, "would be done"),
        (Outcome.REFUSED, "refused (no such node)"),
        (Outcome.CHANGED, "changed (no such node)"),
    ],
)
def test_what_was_not_done_is_never_told_as_done(outcome: Outcome, words: str) -> None:
    assert f"for r-1 {words}" in passes.did(Done(EXCLUDE, START, outcome, "no such node"))


def test_a_hundred_actions_and_runs_make_one_line_of_bounded_length() -> None:
    verdicts = tuple(Verdict(f"r-{number}", "starts", "it waits") for number in range(1000))
    done = [Done(EXCLUDE, START, Outcome.DONE)] * 100
    assert len(sentence(passed(Decision((), verdicts), *done))) < 500
    assert sentence(passed(Decision((), verdicts))).endswith("and 996 more")


def test_failed_sources_and_why_nothing_was_done_are_said() -> None:
    blind = msgspec.structs.replace(SEEN, runs=None, failed={"jobs": "no answer"})
    said = sentence(passed(Decision((), ()), snapshot=blind, standing_by="Slurm is away", trouble="not saved"))
    assert said == "no runs seen in 0.2 s; no jobs: no answer; nothing to do; Slurm is away; not saved"


def test_incidents_are_said() -> None:
    incident = Incident("switch", "leaf3", START, None, ("r-1", "r-2"), ("n1", "n2", "n3"))
    assert "incident: switch leaf3, 2 runs, 3 nodes" in sentence(passed(Decision((), (), incidents=(incident,))))


def test_every_pass_is_json() -> None:
    for one in (
        passed(Decision((EXCLUDE,), (QUIET,), interruptions=(END,)), Done(EXCLUDE, START, Outcome.DONE)),
        Passed(START, "c", "user me", 0.0, False, trouble="the database is away"),
    ):
        told = json.loads(json.dumps(as_json(one)))
        assert told["blind"] is one.is_blind
        assert list(told) == list(as_json(passed(Decision((), ()))))


def test_a_screenful_of_unreadable_runs_is_kept() -> None:
    runs = tuple(msgspec.structs.replace(RUN, key=f"r-{number}") for number in range(1000))
    assert len(passes.unreadable(msgspec.structs.replace(SEEN, runs=runs))) == 20
