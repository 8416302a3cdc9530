"""A healthy node says nothing worth a line, in any phase, with and without a learned profile."""

from __future__ import annotations

import pytest

from fleetctl.health.decide import decide
from fleetctl.health.judge_log import LogRules, judge_log
from fleetctl.health.learn import learn
from fleetctl.health.model import Answer, Care, Decision, Outcome, Phase, Readings
from tests.unit.health import nodes
from tests.unit.health.logged import table
from tests.unit.health.nodes import KINDS, healthy, judged

PHASES = pytest.mark.parametrize("phase", list(Phase), ids=lambda phase: phase.value)


def _node(name: str, phase: Phase) -> Readings:
    return nodes.in_prolog(healthy(name)) if phase is Phase.PROLOG else healthy(name)


@PHASES
@pytest.mark.parametrize("learned", [False, True], ids=["built_in", "learned"])
@pytest.mark.parametrize("second", [False, True], ids=["first look", "second look"])
@pytest.mark.parametrize("name", list(KINDS))
def test_a_healthy_node_is_clean(name: str, second: bool, learned: bool, phase: Phase) -> None:
    node, before = nodes.later(_node(name, phase))
    profile = learn(healthy(name)) if learned else None
    gpus = (0, 1) if phase in (Phase.PROLOG, Phase.EPILOG) else None
    found = judged(node, profile, phase, gpus, before if second else None)
    found += judge_log(node, table(), None, LogRules(phase=phase))
    assert decide(found).decision is Decision.CLEAN, [f for f in found if f.care > Care.IGNORE]


@PHASES
def test_a_healthy_node_in_a_container_is_clean_for_its_jobs(phase: Phase) -> None:
    """No kernel log, no memory controllers, a clock that the host keeps."""
    node = nodes.with_host(_node("h100-sxm", phase), edac_corrected=None, edac_uncorrected=None)
    node = nodes.with_host(node, clock_synchronised=False)._replace(events=None, failed={"log": Answer.FAILED})
    found = judged(node, phase=phase) + judge_log(node, table(), None, LogRules(phase=phase))
    told = [f.check for f in found if f.outcome is not Outcome.PASS and f.care > Care.IGNORE]
    assert told == ([] if phase in (Phase.PROLOG, Phase.EPILOG) else ["xid"])
