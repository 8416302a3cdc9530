from __future__ import annotations

from typing import Any

import pytest

from fleetctl.health.model import Care, Finding, Outcome
from fleetctl.health.service import Back, Return, Seen, may_return
from fleetctl.health.state import Drain
from tests.unit.health.looks import AT, BOOT, drain_of, fail, good

DRAIN = drain_of(fail())
LATER = AT + 601
OTHER_BOOT = "22222222-2222-2222-2222-222222222222"


def ask(
    drain: Drain | None = DRAIN,
    reason: str | None = DRAIN.reason,
    findings: list[Finding] | None = None,
    boot_id: str = BOOT,
    at: float = LATER,
    returned: tuple[float, ...] = (),
    back: Back = Back(),  # noqa: B008 - a tuple of numbers
) -> Return:
    return may_return(drain, reason, Seen([good()] if findings is None else findings, boot_id, at), returned, back)


def test_a_drain_of_ours_ends_when_the_failed_part_passes() -> None:
    assert ask() == Return(True, "what failed passes now: nvlink_state")


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ({"drain": None}, "no drain of ours"),
        ({"reason": "maintenance"}, "not the one that fleetctl wrote"),
        ({"reason": ""}, "not the one that fleetctl wrote"),
        ({"reason": DRAIN.reason + " (alice looks at it)"}, "not the one that fleetctl wrote"),
        ({"reason": "fleetctl: another one of ours [fabric]"}, "not the one that fleetctl wrote"),
        ({"reason": None}, "did not tell"),
        ({"drain": DRAIN._replace(reason=""), "reason": ""}, "not the one that fleetctl wrote"),
        ({"drain": DRAIN._replace(care=Care.HUMAN)}, "a person must look"),
        ({"at": AT + 599}, "1 s of the cool-down"),
        ({"at": AT - 5}, "600 s of the cool-down"),
        ({"returned": (LATER - 10,)}, "590 s of the cool-down"),
        ({"returned": (LATER + 9999,)}, "600 s of the cool-down"),
        ({"returned": (AT - 5000, AT - 6000)}, "came back 2 times"),
        ({"returned": (LATER + 9e9, LATER + 9e9)}, "came back 2 times"),
        ({"back": Back(most=0)}, "came back 0 times"),
        ({"findings": []}, "was not seen to pass"),
        ({"findings": [good("pcie_width")]}, "was not seen to pass"),
        ({"findings": [good(part="gpu/0000:43:00.0")]}, "was not seen to pass"),
        ({"findings": [fail(outcome=Outcome.CANNOT_TELL, care=Care.WATCH)]}, "was not seen to pass"),
        ({"findings": [good(), fail(care=Care.WATCH)]}, "was not seen to pass"),
        ({"findings": [good(), fail("ecc_mode")]}, "fails still: ecc_mode"),
        ({"drain": DRAIN._replace(findings=())}, "not known what failed"),
        ({"drain": DRAIN._replace(care=Care.REBOOT)}, "only a reboot"),
        ({"drain": drain_of(fail("xid", Care.RESET)), "findings": [good("xid")]}, "only a reboot"),
        ({"drain": drain_of(fail("sxid")), "findings": [good("sxid")]}, "only a reboot"),
        ({"drain": DRAIN._replace(care=Care.REBOOT), "boot_id": ""}, "only a reboot"),
        ({"drain": DRAIN._replace(care=Care.REBOOT, boot_id=""), "boot_id": OTHER_BOOT}, "only a reboot"),
        ({"boot_id": OTHER_BOOT, "findings": []}, "was not seen to pass"),
        (
            {
                "drain": drain_of(fail("xid", Care.RESET)),
                "boot_id": OTHER_BOOT,
                "findings": [fail("xid", Care.WATCH, outcome=Outcome.CANNOT_TELL)],
            },
            "was not seen to pass",
        ),
        ({"boot_id": OTHER_BOOT, "findings": [good(), fail(part="gpu/x", care=Care.WATCH)]}, "was not seen to pass"),
    ],
)
def test_the_node_stays_drained(case: dict[str, Any], why: str) -> None:
    answer = ask(**case)
    assert not answer.back
    assert why in answer.why


@pytest.mark.parametrize(
    "case",
    [
        {"at": AT + 600},
        {"returned": (AT - 5000,)},
        {"returned": (AT - 90_000, AT - 91_000, AT - 92_000)},
        {"findings": [good(), fail("memory_in_use", Care.WATCH)]},
        {"drain": DRAIN._replace(care=Care.REBOOT), "boot_id": OTHER_BOOT},
        {"drain": drain_of(fail("xid", Care.RESET)), "findings": [good("xid")], "boot_id": OTHER_BOOT},
        {"drain": drain_of(fail("xid", Care.RESET)), "findings": [fail("xid", Care.APP)], "boot_id": OTHER_BOOT},
        {"findings": [good(part="gpu/0000:44:00.0")], "boot_id": OTHER_BOOT},
    ],
)
def test_the_node_comes_back(case: dict[str, Any]) -> None:
    assert ask(**case).back


def test_every_part_that_failed_must_pass() -> None:
    two = drain_of(fail(), fail("pcie_width", part="gpu/0000:43:00.0"))
    assert not ask(two, findings=[good()]).back
    assert ask(two, findings=[good(), good("pcie_width", "gpu/0000:43:00.0")]).back
