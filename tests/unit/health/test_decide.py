from __future__ import annotations

import pytest

from fleetctl.health.decide import MOST_REASON, decide, plain, reason_of, without_budget
from fleetctl.health.model import Care, Decision, Finding, Mark, Outcome
from tests.unit.health.looks import fail, good


@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.CANNOT_TELL])
@pytest.mark.parametrize("care", [Care.RESET, Care.REBOOT, Care.DRAIN, Care.HUMAN])
def test_a_finding_from_reset_on_drains(outcome: Outcome, care: Care) -> None:
    assert decide([good(), fail(care=care, outcome=outcome)]).decision is Decision.DRAIN


@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.CANNOT_TELL])
@pytest.mark.parametrize("care", [Care.WATCH, Care.APP])
def test_a_finding_below_reset_is_noted(outcome: Outcome, care: Care) -> None:
    choice = decide([good(), fail(care=care, outcome=outcome)])
    assert (choice.decision, choice.reason, choice.closing) == (Decision.NOTED, "", ())


@pytest.mark.parametrize("findings", [[], [good()], [fail(care=Care.IGNORE)], [good()._replace(care=Care.HUMAN)]])
def test_what_passed_or_is_to_be_ignored_is_clean(findings: list[Finding]) -> None:
    assert decide(findings).decision is Decision.CLEAN


def test_the_reason_is_that_of_the_worst_finding_and_counts_the_others() -> None:
    findings = [
        fail("pcie_width", Care.DRAIN, words="PCIe runs with 8 of 16 lanes"),
        fail("ecc_sram", Care.HUMAN, words="too many SRAM errors"),
        fail("memory_in_use", Care.WATCH),
    ]
    assert decide(findings).reason == "fleetctl: GPU 3 (0000:1b:00.0): too many SRAM errors [ecc_sram] (+1 more)"


def test_a_lost_gpu_is_named_first_and_marks_the_choice() -> None:
    lost = fail("gpu_lost", Care.REBOOT, mark=Mark.LOST_GPU, words="GPU 3 (0000:1b:00.0) is lost (NVML 15)")
    choice = decide([fail("ecc_sram", Care.HUMAN), lost])
    assert choice.reason == "fleetctl: GPU 3 (0000:1b:00.0) is lost (NVML 15) [gpu_lost: reboot the node] (+1 more)"
    assert choice.lost
    assert not decide([fail("ecc_sram", Care.HUMAN)]).lost


def test_a_lost_gpu_that_only_is_watched_is_no_lost_one() -> None:
    assert not decide([fail(), fail(care=Care.WATCH, mark=Mark.LOST_GPU)]).lost


def test_what_was_measured_is_named_before_what_could_not_be_told() -> None:
    untold = fail("fabric", outcome=Outcome.CANNOT_TELL)
    assert "[nvlink_state]" in decide([untold, fail()]).reason


@pytest.mark.parametrize(
    "words",
    [
        'x"; scontrol delete reservation',
        "two\nlines\r\nand\ttabs",
        "\x1b[31mred\x1b[0m",
        "a\x00b",
        "naïve ünïcode ☃",
        "a=b|c=d",
        "\\n\\",
        "`id` $(id) 'x'",
        "w" * 5000,
        "",
        " ",
        "\u2028line separator",
    ],
)
def test_a_reason_is_one_short_line_of_printable_ascii_whatever_the_words(words: str) -> None:
    reason = reason_of([fail(words=words), fail()])
    assert reason.startswith("fleetctl: ")
    assert len(reason) <= MOST_REASON
    assert all(" " <= c <= "~" for c in reason)
    assert not set('"`=|\\') & set(reason)
    assert reason == reason.strip()
    assert reason.endswith("[nvlink_state] (+1 more)")


def test_words_of_the_node_itself_are_not_led_by_its_name() -> None:
    finding = Finding("host_memory", Outcome.FAIL, "node", "node", "256 of 512 GiB", care=Care.DRAIN)
    assert reason_of([finding]) == "fleetctl: 256 of 512 GiB [host_memory: look for a failed module]"


def test_a_plain_text_stays_as_it_is() -> None:
    assert plain("port mlx5_0/1: 2 of 4 lanes (2X NDR)") == "port mlx5_0/1: 2 of 4 lanes (2X NDR)"


def test_without_budget_the_node_stays_open_and_a_finding_says_why() -> None:
    choice, note = without_budget(decide([fail()]), "3 nodes of the fleet were drained in this window already")
    assert choice.decision is Decision.NO_BUDGET
    assert (note.check, note.outcome, note.care) == ("budget", Outcome.FAIL, Care.WATCH)
    assert "3 nodes of the fleet" in note.words
    assert "17 of 18 NVLinks are up [nvlink_state]" in note.words
