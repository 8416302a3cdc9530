from __future__ import annotations

import pytest

from fleetctl.health.service import Return
from fleetctl.health.tell import (
    Meant,
    Ran,
    Reply,
    Run,
    Shown,
    Told,
    drain,
    environment,
    meant,
    parse_node,
    resume,
    standing,
)
from tests.unit.health.looks import AT, BOOT, NODE, drain_of, fail, shown

REASON = "fleetctl: NVLink 3 is down [nvlink_state] (+1 more)"
SHOW = ("show", "node", NODE)
DRAINED = ("update", f"nodename={NODE}", "state=drain", f"reason={REASON}")
KNOWN = Meant(REASON, AT)
RESUMED = ("update", f"nodename={NODE}", "state=resume")


class Control:
    """A scontrol that shows this and answers updates so."""

    def __init__(self, text: str, status: int | None = 0, update: Ran = Ran(0, "")) -> None:  # noqa: B008
        self.text, self.status, self.update = text, status, update
        self.calls: list[tuple[str, ...]] = []

    def run(self, arguments: list[str]) -> Ran:
        self.calls.append(tuple(arguments))
        return Ran(self.status, self.text) if arguments[0] == "show" else self.update

    @property
    def verb(self) -> Run:
        return self.run


def allow(reason: str) -> Return:
    return Return(True, "")


@pytest.mark.parametrize("state", ["IDLE", "ALLOCATED", "MIXED", "DOWN*", "IDLE+CLOUD", "IDLE+COMPLETING"])
@pytest.mark.parametrize("reason", ["", "Not responding", "fleetctl: an old one [fabric]"])
def test_an_open_node_is_drained_with_our_reason(state: str, reason: str) -> None:
    control = Control(shown(state, reason))
    assert drain(control.verb, NODE, REASON) == Reply(Told.TOLD, REASON)
    assert control.calls == [SHOW, DRAINED]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("IDLE+DRAIN", "SHUTDOWN"),
        ("ALLOCATED+DRAIN", "alice: do not touch"),
        ("IDLE+DRAIN", ""),
        ("IDLE+DRAIN", "Prolog error"),
        ("DOWN+DRAIN", "fans; fleetctl: x"),
        ("IDLE+DRAIN+MAINTENANCE", "Fleetctl: not ours"),
    ],
)
def test_the_word_of_others_is_never_touched(state: str, reason: str) -> None:
    control = Control(shown(state, reason))
    reply = drain(control.verb, NODE, REASON)
    assert reply.told is Told.THEIRS
    assert reply.reason == reason
    assert control.calls == [SHOW]


def test_a_remark_of_somebody_else_on_an_open_node_is_kept_and_is_no_drain() -> None:
    control = Control(shown("IDLE", "watch this one"))
    reply = drain(control.verb, NODE, REASON)
    assert (reply.told, reply.told.closed) == (Told.REMARK, False)
    assert control.calls == [SHOW]


@pytest.mark.parametrize("words", ["Prolog error", "Epilog error", "Prolog error: node1 (7)"])
@pytest.mark.parametrize("late_s", [-60, 0, 5, 600])
def test_slurms_own_word_for_our_exit_is_replaced_by_the_reason_that_was_meant(words: str, late_s: float) -> None:
    control = Control(shown("IDLE+DRAIN", words, AT + late_s))
    assert standing(control.verb, NODE, KNOWN) == Reply(Told.OWED, words)
    assert drain(control.verb, NODE, "fleetctl: what is wrong now [x]", KNOWN) == Reply(Told.TOLD, REASON)
    assert control.calls == [SHOW, SHOW, DRAINED]


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (shown("IDLE+DRAIN", "Prolog error", AT), None),
        (shown("IDLE+DRAIN", "Prolog error", AT), Meant(REASON, None)),
        (shown("IDLE+DRAIN", "Prolog error", AT - 61), KNOWN),
        (shown("IDLE+DRAIN", "Prolog error", AT + 601), KNOWN),
        (shown("IDLE+DRAIN", "prolog error", AT), KNOWN),
        (shown("IDLE+DRAIN", "see Prolog error", AT), KNOWN),
        (shown("IDLE", "Prolog error", AT), KNOWN),
        (shown("IDLE+DRAIN") + "   Reason=Prolog error\n", KNOWN),
        (shown("IDLE+DRAIN") + "   Reason=Prolog error [root@today]\n", KNOWN),
        (shown("IDLE+DRAIN") + "   Reason=Prolog error [root@2023-99-14T22:13:20]\n", KNOWN),
    ],
)
def test_without_proof_slurms_word_is_about_somebody_elses_prolog(text: str, known: Meant | None) -> None:
    control = Control(text)
    assert drain(control.verb, NODE, REASON, known).told in (Told.THEIRS, Told.REMARK)
    assert resume(control.verb, NODE, known or KNOWN._replace(at=None), allow).told is Told.THEIRS
    assert control.calls == [SHOW, SHOW]


def test_a_drain_that_is_owed_is_written_before_it_can_be_ended() -> None:
    control = Control(shown("IDLE+DRAIN", "Prolog error", AT))
    assert resume(control.verb, NODE, KNOWN, allow) == Reply(Told.OURS, REASON, "it said only Prolog error")
    assert control.calls == [SHOW, DRAINED]
    refusing = Control(shown("IDLE+DRAIN", "Prolog error", AT), update=Ran(1, "denied"))
    assert resume(refusing.verb, NODE, KNOWN, allow).told is Told.UNKNOWN


def test_a_drain_of_another_boot_is_known_without_its_time() -> None:
    drained = drain_of(fail(), reason=REASON)
    assert meant(None, BOOT) is None
    assert meant(drained, BOOT) == KNOWN
    assert meant(drained, "another") == meant(drained._replace(boot_id=""), "") == Meant(REASON, None)


def test_a_drain_of_ours_is_not_written_twice() -> None:
    control = Control(shown("IDLE+DRAIN", "fleetctl: first [fabric]"))
    assert drain(control.verb, NODE, REASON) == Reply(Told.OURS, "fleetctl: first [fabric]")
    assert control.calls == [SHOW]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", None),
        ("scontrol: error: ...", 1),
        (f"Node {NODE} not found", 0),
        (shown("IDLE").replace(NODE, "node10"), 0),
        ("", 0),
        ("NodeName=node1 Arch=x\n", 0),
        ("NodeName=node1\n   State= X\n", 0),
        ("\x00\xff" * 100, 0),
    ],
)
def test_where_slurm_does_not_tell_nothing_is_written(text: str, status: int | None) -> None:
    for ending in (False, True):
        control = Control(text, status)
        reply = resume(control.verb, NODE, KNOWN, allow) if ending else drain(control.verb, NODE, REASON)
        assert reply.told is Told.UNKNOWN
        assert reply.reason is None
        assert reply.detail.startswith("scontrol show node")
        assert control.calls == [SHOW]


def test_an_update_without_an_answer_may_have_been_done() -> None:
    control = Control(shown("IDLE"), update=Ran(None, ""))
    assert drain(control.verb, NODE, REASON) == Reply(Told.UNKNOWN, REASON, "scontrol update: no answer in time")


def test_a_refused_update_says_why() -> None:
    control = Control(shown("IDLE"), update=Ran(1, "slurm_update error:\n Access denied"))
    assert drain(control.verb, NODE, REASON).detail == "scontrol update ended with 1: slurm_update error: Access denied"


def test_the_drain_that_the_rules_know_is_ended() -> None:
    asked = []

    def may(reason: str) -> Return:
        asked.append(reason)
        return Return(True, "")

    control = Control(shown("IDLE+DRAIN", REASON))
    assert resume(control.verb, NODE, KNOWN, may) == Reply(Told.TOLD)
    assert control.calls == [SHOW, RESUMED]
    assert asked == [REASON]


@pytest.mark.parametrize(
    ("state", "reason"), [("IDLE", REASON), ("DOWN", REASON), ("IDLE+DRAIN", REASON + "!"), ("IDLE+DRAIN", "")]
)
def test_what_is_not_the_drain_that_the_rules_know_is_not_ended(state: str, reason: str) -> None:
    control = Control(shown(state, reason))
    assert resume(control.verb, NODE, KNOWN, allow) == Reply(Told.THEIRS, reason)
    assert control.calls == [SHOW]


def test_a_drain_stands_while_the_rules_do_not_allow_its_end() -> None:
    control = Control(shown("IDLE+DRAIN", REASON))
    assert resume(control.verb, NODE, KNOWN, lambda _: Return(False, "no")) == Reply(Told.OURS, REASON, "no")
    assert control.calls == [SHOW]


@pytest.mark.parametrize(
    "state",
    [
        "DOWN+DRAIN",
        "DOWN*+DRAIN",
        "IDLE*+DRAIN",
        "IDLE+DRAIN+REBOOT_REQUESTED",
        "IDLE+DRAIN+POWERED_DOWN",
        "IDLE+DRAIN+POWERING_UP",
        "ALLOCATED+DRAIN+FAIL",
        "ERROR+DRAIN",
        "UNKNOWN+DRAIN",
    ],
)
def test_a_resume_that_would_undo_more_than_our_drain_is_not_made(state: str) -> None:
    control = Control(shown(state, REASON))
    reply = resume(control.verb, NODE, KNOWN, allow)
    assert reply.told is Told.OURS
    assert control.calls == [SHOW]


@pytest.mark.parametrize(
    ("state", "reason", "told"),
    [("IDLE", "", Told.OPEN), ("IDLE+DRAIN", REASON, Told.OURS), ("IDLE+DRAIN", "alice", Told.THEIRS)],
)
def test_whose_word_stands_is_only_looked_at(state: str, reason: str, told: Told) -> None:
    control = Control(shown(state, reason))
    assert standing(control.verb, NODE).told is told
    assert control.calls == [SHOW]


@pytest.mark.parametrize(
    "reason", ["a", "ends in [brackets]", "at @ home", "fleetctl: x [gpu_lost] (+2 more)", "[a@b]", "State=DOWN"]
)
def test_the_reason_is_read_without_who_set_it_and_when(reason: str) -> None:
    assert parse_node(shown("IDLE+DRAIN", reason), NODE) == Shown(("IDLE", "DRAIN"), reason, "root@2023-11-14T22:13:20")


def test_a_reason_that_nobody_signed_is_read_whole() -> None:
    assert parse_node("NodeName=node1 x\nState=DOWN y\nReason=low memory [none]\n", NODE) == Shown(
        ("DOWN",), "low memory [none]"
    )


def test_scontrol_gets_the_way_to_the_cluster_and_nothing_of_the_job() -> None:
    environ = {
        "SLURM_CONF": "/x",
        "SLURM_CLUSTERS": "other",
        "SLURM_JOB_COMMENT": "x",
        "PATH": "/tmp",
        "LD_PRELOAD": "e",
    }
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    assert environment(environ) == {"SLURM_CONF": "/x", "PATH": path, "LC_ALL": "C", "TZ": "UTC"}
