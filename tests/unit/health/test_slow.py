"""NVML that was slow before is slow again, and not hung."""

from __future__ import annotations

import pytest

from fleetctl.health.model import Answer, Care, Nvml, Phase
from fleetctl.health.slow import excused
from tests.unit.health.looks import fail

SILENT = fail("nvml", Care.DRAIN, part="node")
OTHER = fail()


@pytest.mark.parametrize("phase", [Phase.PROLOG, Phase.EPILOG])
@pytest.mark.parametrize("answer", [Answer.HUNG, Answer.BUSY])
def test_a_slow_nvml_keeps_no_job_away_and_says_what_to_do(phase: Phase, answer: Answer) -> None:
    found = excused([SILENT, OTHER], Nvml(answer), phase, 9.0, 8.0)
    assert [one.care for one in found] == [Care.WATCH, OTHER.care]
    assert found[0].outcome is SILENT.outcome
    assert "took 9 s before" in found[0].words
    assert "persistence mode" in found[0].words


@pytest.mark.parametrize(
    ("nvml", "phase", "last_s"),
    [
        (Nvml(Answer.HUNG), Phase.PROLOG, None),
        (Nvml(Answer.HUNG), Phase.PROLOG, 0.4),
        (Nvml(Answer.HUNG), Phase.PROLOG, 1.9),
        (Nvml(Answer.HUNG), Phase.PERIODIC, 9.0),
        (Nvml(Answer.BUSY), Phase.BOOT, 9.0),
        (Nvml(Answer.FAILED, 18), Phase.PROLOG, 9.0),
        (Nvml(Answer.CRASHED), Phase.PROLOG, 9.0),
        (None, Phase.PROLOG, 9.0),
    ],
)
def test_anything_else_closes_as_before(nvml: Nvml | None, phase: Phase, last_s: float | None) -> None:
    assert excused([SILENT], nvml, phase, last_s, 8.0) == (SILENT,)


def test_a_site_that_only_notes_it_gets_no_more() -> None:
    mild = SILENT._replace(care=Care.IGNORE)
    assert excused([mild], Nvml(Answer.HUNG), Phase.PROLOG, 9.0, 8.0)[0].care is Care.IGNORE
