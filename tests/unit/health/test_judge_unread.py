"""What was not read is no good news: each check that needs it says so."""

from __future__ import annotations

from typing import Any

import pytest

from fleetctl.health.learn import learn
from fleetctl.health.model import Answer, Care, Host, Outcome, Phase
from tests.unit.health import nodes
from tests.unit.health.nodes import closing, healthy, judged


@pytest.mark.parametrize("gone", [{"devices": None}, {"ports": None}, {"host": None}], ids=str)
@pytest.mark.parametrize("phase", list(Phase), ids=lambda phase: phase.value)
def test_no_check_vanishes_with_what_it_reads(gone: dict[str, Any], phase: Phase) -> None:
    profile = learn(healthy())
    node, before = nodes.later(healthy())
    well = {finding.check for finding in judged(node, profile, phase, before=before)}
    bad = node._replace(**gone, failed={"files": Answer.FAILED})
    found = judged(bad, profile, phase, before=before)
    assert well - {finding.check for finding in found} == set()
    assert closing(found) == []


def test_nothing_of_a_machine_that_was_not_read_is_called_well() -> None:
    found = judged(healthy()._replace(host=None, devices=None))
    for check in ("shm", "host_memory", "edac", "edac_corrected", "clock", "clock_source", "governor", "stuck"):
        finding = nodes.one(found, check)
        assert finding.outcome is Outcome.CANNOT_TELL
        assert finding.words.endswith("was not read")


@pytest.mark.parametrize(
    ("counts", "cares"),
    [
        ({"edac_uncorrected": None}, {"edac": Care.WATCH}),
        ({"edac_corrected": None}, {"edac_corrected": Care.WATCH}),
        ({"edac_corrected": None, "edac_uncorrected": None}, {"edac": Care.IGNORE, "edac_corrected": Care.IGNORE}),
    ],
    ids=str,
)
def test_a_count_of_memory_errors_that_was_not_read_does_not_pass(counts: Any, cares: dict[str, Care]) -> None:
    node, before = nodes.later(healthy())
    found = judged(nodes.with_host(node, **counts), before=before)
    untold = [f for f in found if f.check in ("edac", "edac_corrected") and f.outcome is Outcome.CANNOT_TELL]
    assert {finding.check: finding.care for finding in untold} == cares


def test_mounts_alone_make_no_machine_well() -> None:
    assert nodes.one(judged(healthy()._replace(host=Host())), "edac").outcome is Outcome.CANNOT_TELL


def test_a_boot_id_that_cannot_be_read_is_told_once() -> None:
    node, before = nodes.later(healthy())
    found = judged(node._replace(boot_id=""), before=before)
    told = [finding for finding in found if "boot id" in finding.words]
    assert [(f.check, f.outcome, f.care) for f in told] == [("files", Outcome.CANNOT_TELL, Care.WATCH)]
