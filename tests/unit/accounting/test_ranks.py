"""Which cause of an interruption comes first, and with what evidence."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fleetctl.accounting.causes import Cause, Ranked
from fleetctl.accounting.model import NodeEvent
from fleetctl.accounting.ranks import NEAR_MS, Found, Said, Told, rank
from fleetctl.health.checks import CHECKS

AT_MS = 1_800_000_000_000
FAILED = Told(AT_MS, "failed", "step 0: Exited with exit code 1", 1)
UNTOLD = Told(AT_MS, "")
SLURM_FAILED = Said("program", "FAILED", None, 1, 0, "")
NODE_FAIL = Said("node", "NODE_FAIL", None, 1, 0, "")
XID = Found("n3", AT_MS - 1000, "xid", "reboot", "Xid 79 on GPU 3")
DOWN = NodeEvent("n3", AT_MS // 1000 + 300, None, "DOWN*", "Not responding", "slurm")


def causes(*ranked: Ranked) -> list[Cause]:
    return [one.cause for one in ranked]


def test_a_failure_is_the_programs_while_nothing_else_is_known() -> None:
    assert rank(FAILED, (), (), ()) == (Ranked(Cause.PROGRAM, "step 0: Exited with exit code 1"),)
    assert causes(*rank(FAILED, [SLURM_FAILED], (), ())) == [Cause.PROGRAM]
    assert causes(*rank(replace(FAILED, status=139), (), (), ())) == [Cause.CRASH]
    assert causes(*rank(replace(FAILED, status=9), (), (), ())) == [Cause.PROGRAM], "the head knows 9 from 137"


def test_a_gpu_that_died_near_the_end_comes_before_the_program_that_failed_of_it() -> None:
    assert rank(FAILED, [SLURM_FAILED], [XID], ()) == (
        Ranked(Cause.GPU, "xid: Xid 79 on GPU 3", "n3"),
        Ranked(Cause.PROGRAM, "step 0: Exited with exit code 1"),
    )
    assert causes(*rank(UNTOLD, [NODE_FAIL], [XID], [DOWN])) == [Cause.GPU, Cause.NODE]


def test_a_finding_long_before_or_after_says_nothing() -> None:
    for apart_ms in (-NEAR_MS - 1, NEAR_MS + 1):
        assert causes(*rank(FAILED, (), [replace(XID, at_ms=AT_MS + apart_ms)], ())) == [Cause.PROGRAM]
    assert causes(*rank(FAILED, (), [replace(XID, at_ms=AT_MS + NEAR_MS)], ())) == [Cause.GPU, Cause.PROGRAM]


def test_what_is_only_worth_watching_comes_last() -> None:
    hot = Found("n3", AT_MS, "port_errors", "watch", "7 errors")
    assert causes(*rank(FAILED, (), [hot], ())) == [Cause.PROGRAM, Cause.NETWORK]


def test_no_finding_explains_a_decision_away() -> None:
    for cause in (Cause.CANCELLED_BY_USER, Cause.PREEMPTED, Cause.TIME_LIMIT, Cause.REQUEUED):
        said = Said(cause, "X", 1000, 0, 15, "")
        assert causes(*rank(Told(AT_MS, "told", "", 143), [said], [XID], ())) == [cause, Cause.GPU]


def test_a_requeue_that_the_head_asked_for_itself_comes_after_its_reason() -> None:
    requeued = Said("requeued", "REQUEUED", None, 0, 0, "")
    lost = Told(AT_MS, "node_lost", "", 137, (("n3", "its agent is silent"),))
    assert rank(lost, [requeued], (), ()) == (
        Ranked(Cause.NODE, "lost: its agent is silent", "n3"),
        Ranked(Cause.REQUEUED, "Slurm: REQUEUED, 0:0"),
    )
    hung = Told(AT_MS, "hung", "hang in step", 137, hung_on="n3")
    assert rank(hung, [requeued], (), ()) == (
        Ranked(Cause.HANG, "hang in step", "n3"),
        Ranked(Cause.REQUEUED, "Slurm: REQUEUED, 0:0"),
    )
    assert rank(Told(AT_MS, "hung", "hang in save", 137), (), (), ()) == (Ranked(Cause.HANG, "hang in save"),)
    given_back = Said("cancelled_by_user", "CANCELLED", 1000, 0, 15, "")
    assert causes(*rank(lost, [given_back], (), ())) == [Cause.NODE, Cause.CANCELLED_BY_USER]
    saved = Told(AT_MS, "saved", "", 143, (), "time limit")
    assert causes(*rank(saved, [requeued], (), ())) == [Cause.TIME_LIMIT, Cause.REQUEUED]
    assert causes(*rank(replace(saved, saved_for="preemption"), (), (), ())) == [Cause.PREEMPTED]


def test_out_of_memory_by_slurm_comes_before_the_kill_that_the_head_saw() -> None:
    killed = Told(AT_MS, "failed", "step 0: Killed", 137)
    oom = Said("out_of_memory", "OUT_OF_MEMORY", None, 0, 125, "")
    assert causes(*rank(killed, [oom], (), ())) == [Cause.OUT_OF_MEMORY, Cause.KILLED]


def test_the_node_is_named_by_whoever_knows_it() -> None:
    assert rank(UNTOLD, [NODE_FAIL], (), ()) == (Ranked(Cause.NODE, "Slurm: NODE_FAIL, 1:0"),)
    assert rank(UNTOLD, [NODE_FAIL], (), [DOWN]) == (Ranked(Cause.NODE, "DOWN*: Not responding", "n3"),)
    assert rank(UNTOLD, [replace(NODE_FAIL, failed_node="n4")], (), [DOWN]) == (
        Ranked(Cause.NODE, "Slurm: NODE_FAIL, 1:0", "n4"),
        Ranked(Cause.NODE, "DOWN*: Not responding", "n3"),
    )


@pytest.mark.parametrize("state", ["DOWN", "DOWN*", "down*+DRAIN", "DRAIN+DOWN~", "DOWN*+"])
def test_a_node_that_slurm_calls_down_may_have_ended_it(state: str) -> None:
    assert rank(UNTOLD, (), (), [replace(DOWN, state=state)])[0].cause is Cause.NODE


@pytest.mark.parametrize("state", ["DRAIN", "IDLE+POWERED_DOWN", "POWERING_DOWN", "IDLE*+POWERING_DOWN#", ""])
def test_a_node_that_is_drained_or_saves_power_has_ended_nothing(state: str) -> None:
    assert rank(UNTOLD, [NODE_FAIL], (), [replace(DOWN, state=state)]) == (Ranked(Cause.NODE, "Slurm: NODE_FAIL, 1:0"),)


def test_what_nothing_tells_is_unknown_and_says_so() -> None:
    assert causes(*rank(UNTOLD, (), (), ())) == [Cause.UNKNOWN]
    assert rank(Told(AT_MS, "told"), (), (), ())[0].evidence == "Slurm told the job to end, and has not said why"
    assert causes(*rank(UNTOLD, [Said("of a newer fleetctl", "X", None, None, None, "")], (), ())) == [Cause.UNKNOWN]


def test_a_cancel_that_was_asked_for_is_the_users() -> None:
    assert causes(*rank(Told(AT_MS, "told", cancelled_by="me"), (), (), ())) == [Cause.CANCELLED_BY_USER]


def test_another_head_and_an_early_end_are_named() -> None:
    assert causes(*rank(Told(AT_MS, "fenced"), (), (), ())) == [Cause.FENCED]
    assert causes(*rank(Told(AT_MS, "stopped_early", "status 0 before the target step", 0), (), (), ())) == [
        Cause.STOPPED_EARLY
    ]


def test_evidence_is_one_short_line() -> None:
    ranked = rank(replace(FAILED, failure="a\nb\t" + "x" * 5000), (), (), ())
    assert ranked[0].evidence.startswith("a b x")
    assert len(ranked[0].evidence) == 300


def test_every_check_that_may_close_a_node_blames_a_part() -> None:
    from fleetctl.accounting.ranks import PARTS, part_of

    named = frozenset().union(*PARTS.values())
    assert named <= CHECKS.keys(), "a check that is called otherwise now"
    assert part_of("edac") is Cause.HOST
    assert part_of("port_state") is Cause.NETWORK
