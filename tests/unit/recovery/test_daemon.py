"""What a daemon may do, and how patient it is with a controller, by what Slurm says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import pytest

from fleetctl.errors import SlurmRefused
from fleetctl.recovery.daemon import can, level_of, policy_of
from fleetctl.recovery.policy import Deeds, Mode
from fleetctl.slurm.model import AdminLevel
from fleetctl.submission.submit import Site


def site(config: Mapping[str, str], level: AdminLevel | None = AdminLevel.NONE) -> Site:
    def admin_level(user: str) -> AdminLevel:
        if level is None:
            raise SlurmRefused(1, "no accounting")
        return level

    slurm = SimpleNamespace(config=lambda: config, admin_level=admin_level)
    return cast(Site, SimpleNamespace(slurm=slurm, user="me"))


@pytest.mark.parametrize(
    ("config", "answer", "level"),
    [
        ({"SlurmUser": "slurm(64030)"}, AdminLevel.OPERATOR, AdminLevel.OPERATOR),
        ({"SlurmUser": "slurm(64030)"}, None, AdminLevel.NONE),
        ({"SlurmUser": "me(1000)"}, None, AdminLevel.ADMINISTRATOR),
        ({}, AdminLevel.NONE, AdminLevel.NONE),
    ],
)
def test_the_level_is_what_accounting_says_or_that_of_slurm_itself(
    config: Mapping[str, str], answer: AdminLevel | None, level: AdminLevel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert level_of(site(config, answer)) is level


def test_root_may_do_everything_whatever_accounting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert level_of(site({"SlurmUser": "slurm(64030)"}, AdminLevel.NONE)) is AdminLevel.ADMINISTRATOR


def test_each_verb_that_is_not_allowed_is_named_with_the_level_that_it_needs() -> None:
    said = can(Mode.OPERATOR, AdminLevel.OPERATOR, acts=True)
    may, _, lacks = said.partition("; not ")
    assert "requeue" in may
    assert "drain (Administrator)" in lacks
    assert "set down (Administrator)" in lacks
    assert "resubmit (the owner alone)" in lacks
    assert "; not " not in can(Mode.OPERATOR, AdminLevel.ADMINISTRATOR, acts=True).replace("; not resubmit", "")
    assert "requeue (Operator)" in can(Mode.OPERATOR, AdminLevel.NONE, acts=True)


def test_a_daemon_of_ones_own_runs_needs_no_level_and_leaves_nodes_alone() -> None:
    said = can(Mode.OWNER, AdminLevel.NONE, acts=False)
    assert "only observes" in said
    assert "resubmit" in said
    assert "drain" not in said
    assert "; not " not in said


@pytest.mark.parametrize(
    ("timeout", "patience_s"), [("300 sec", 120.0), ("30 sec", 30.0), ("0 sec", 120.0), ("", 120.0)]
)
def test_a_controller_that_began_gets_the_time_to_miss_its_silent_nodes(timeout: str, patience_s: float) -> None:
    policy = policy_of(site({"SlurmdTimeout": timeout}), Mode.OWNER, AdminLevel.NONE, acts=True)
    assert policy.controller_s == patience_s
    assert policy.deeds is Deeds.ACT
