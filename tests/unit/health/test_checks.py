"""The table of checks, and what a site may say about them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fleetctl.health
from fleetctl.health.checks import CHECKS
from fleetctl.health.model import Care, Finding, Mount, Outcome, Phase, Stuck
from fleetctl.health.rules import LIMITS, Rules, read_rules, with_site_care
from fleetctl.health.wanted import PortWanted, Profile
from tests.unit.health import nodes

HERE = Path(fleetctl.health.__file__).parent
BY_LOG = {"xid", "sxid", "off_the_bus", "nic_log", "nvme_log", "read_only", "memory_log", "stuck_log", "oom"}
BY_OTHERS = BY_LOG | {"log_lost", "app_xids", "site", "budget", "bug", "job_gpus", "spool"}


def _everything() -> list[Finding]:
    """A node on which every check has something to judge."""
    node = nodes.with_host(nodes.healthy(), mounts=(Mount("/", "ok", free=0.5),), stuck=(Stuck(1, "x", "D"),))
    node = nodes.with_reads(node, 0, retired_pages=0, retired_pending=0)
    links = {link.address: (8.0, 8) for device in node.devices or () for link in (device.link, *device.bridges)}
    profile = Profile("p", ports=(PortWanted("mlx5_0", 1, 1.0, 1),), nic_links=links)
    after, before = nodes.later(node)
    return [finding for phase in Phase for finding in nodes.judged(after, profile, phase, before=before)]


def test_every_check_of_the_table_is_made_and_no_other() -> None:
    made = {finding.check for finding in _everything()}
    assert made == set(CHECKS) - BY_OTHERS


def test_every_check_can_pass() -> None:
    assert {finding.check for finding in _everything() if finding.outcome is Outcome.PASS} == set(
        CHECKS
    ) - BY_OTHERS - {"gpu_model"}


@pytest.mark.parametrize("phase", list(Phase), ids=lambda phase: phase.value)
def test_a_check_is_made_only_in_its_phases(phase: Phase) -> None:
    node = nodes.with_host(nodes.healthy(), stuck=(Stuck(1, "x", "D"),))
    made = {finding.check for finding in nodes.judged(node, phase=phase)}
    assert made <= {check for check, row in CHECKS.items() if phase in row.phases}


@pytest.mark.parametrize("name", list(CHECKS))
def test_a_check_is_described(name: str) -> None:
    check = CHECKS[name]
    assert re.fullmatch(r"[a-z0-9_]+", name)
    assert 10 <= len(check.title) <= 60
    assert check.reads
    assert check.phases


@pytest.mark.parametrize("name", list(LIMITS))
def test_a_limit_is_used_and_has_unit_and_source(name: str) -> None:
    limit = LIMITS[name]
    assert limit.unit
    assert limit.source
    sources = "".join(path.read_text() for path in HERE.glob("judge*.py"))
    assert f'"{name}"' in sources or name.startswith("aer_")


def test_a_sites_mistakes_are_named_and_the_rest_stands() -> None:
    rules, wrong = read_rules(
        {"rows_remapped": 100, "rows": 1},
        {"shm": "drain", "shm@prolog": "Ignore", "shn": "drain", "shm@night": "drain", "edac": "worse"},
    )
    assert rules.limit("rows_remapped") == 100
    assert rules.limit("pages_retired") == 63
    assert rules.care == {"shm": Care.DRAIN, "shm@prolog": Care.IGNORE, "edac": Care.WATCH}
    assert [line.partition(":")[0] for line in wrong] == ["limits", "care", "care", "care of edac"]
    assert "rows" in wrong[0]
    assert "shn" in wrong[1]
    assert "night" in wrong[2]
    assert "ignore, watch, app, reset, reboot, drain, human" in wrong[3]


@pytest.mark.parametrize(
    ("outcome", "own", "said", "care"),
    [
        (Outcome.FAIL, Care.WATCH, Care.DRAIN, Care.DRAIN),
        (Outcome.FAIL, Care.HUMAN, Care.WATCH, Care.WATCH),
        (Outcome.CANNOT_TELL, Care.WATCH, Care.DRAIN, Care.WATCH),
        (Outcome.CANNOT_TELL, Care.DRAIN, Care.WATCH, Care.WATCH),
        (Outcome.PASS, Care.IGNORE, Care.DRAIN, Care.IGNORE),
    ],
)
def test_a_sites_word_counts_for_failures_and_softens_the_rest(
    outcome: Outcome, own: Care, said: Care, care: Care
) -> None:
    finding = Finding("shm", outcome, "node", "node", "words", care=own)
    rules = Rules(care={"shm": said, "edac": Care.HUMAN})
    assert with_site_care([finding], Phase.PROLOG, rules)[0].care is care
    assert with_site_care([finding], Phase.PROLOG, Rules()) == (finding,)
