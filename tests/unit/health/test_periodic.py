from __future__ import annotations

from typing import Any

import pytest

from fleetctl.health import remember
from fleetctl.health.decide import decide
from fleetctl.health.job_end import run_epilog
from fleetctl.health.model import Asked, Baseline, Care, Decision, Finding, Mark, Phase
from fleetctl.health.periodic import run_periodic
from fleetctl.health.prolog import Ended, Job, run_prolog
from fleetctl.health.site import Budget, Site
from fleetctl.health.state import Drain, JobStart, State
from fleetctl.health.tell import Ran, Reply, Run, Told
from tests.unit.health.looks import (
    AT,
    BOOT,
    NODE,
    PROLOG,
    SHOWN_IDLE,
    WHERE,
    Fake,
    drain_of,
    fail,
    good,
    readings,
    shown,
    site,
    xid,
)

OURS = drain_of(fail(), at=AT - 3600)
WITH_BUDGET = site(budget=Budget("/shared", 1))
SHOW = ("show", "node", NODE)
RESUME = ("update", f"nodename={NODE}", "state=resume")


def run(fake: Fake, settings: Site = Site(), phase: Phase = Phase.PERIODIC) -> Ended:  # noqa: B008 - a tuple
    return run_periodic(settings, WHERE, Asked(phase), fake.tools(), fake.now)


def drained(**others: object) -> State:
    return State(boot_id=BOOT, drain=OURS)._replace(**others)  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", [Phase.PERIODIC, Phase.BOOT])
@pytest.mark.parametrize("findings", [[good()], [fail(care=Care.WATCH)]])
def test_a_healthy_node_asks_slurm_nothing(phase: Phase, findings: list[object]) -> None:
    fake = Fake(findings)  # type: ignore[arg-type]
    ended = run(fake, WITH_BUDGET, phase)
    assert (ended.status, ended.line) == (0, "")
    assert fake.calls == []
    assert "slurm" not in fake.tasks


def test_a_fault_drains_the_node_and_the_program_still_ends_well() -> None:
    fake = Fake([fail()])
    ended = run(fake, WITH_BUDGET)
    assert (ended.status, ended.verdict.decision) == (0, Decision.DRAIN)
    assert fake.calls[-1] == ("update", f"nodename={NODE}", "state=drain", f"reason={ended.line}")
    assert fake.tokens == 1
    assert fake.state.drain is not None


@pytest.mark.parametrize(
    ("state", "slurm"),
    [(State(boot_id=BOOT), shown("IDLE+DRAIN", "SHUTDOWN")), (drained(), shown("IDLE+DRAIN", OURS.reason))],
)
def test_no_token_is_spent_on_a_node_that_is_closed(state: State, slurm: str) -> None:
    fake = Fake([fail()], state=state, slurm=slurm)
    run(fake, WITH_BUDGET)
    assert fake.calls == [SHOW]
    assert fake.tokens == 0


def test_an_admins_drain_makes_ours_forgotten() -> None:
    fake = Fake([fail()], state=drained(events=(xid(),)), slurm=shown("IDLE+DRAIN", "alice: fans"))
    run(fake)
    assert fake.state.drain is None
    assert not fake.state.events[0].told


def test_without_budget_nothing_is_told_and_nothing_forgotten() -> None:
    fake = Fake([fail("xid", Care.RESET)], events=(xid(),), token=(False, "spent"))
    ended = run(fake, WITH_BUDGET)
    assert ended.verdict.decision is Decision.NO_BUDGET
    assert fake.calls == [SHOW]
    assert not fake.state.events[0].told


def test_counters_stay_as_they_were_while_there_is_no_budget() -> None:
    first = Fake([good()])
    run(first)
    before = first.state.baseline
    assert before is not None
    later = WHERE._replace(at=AT + 300)
    for token, moves in (((False, "spent"), False), ((True, ""), True)):
        fake = Fake([fail()], state=first.state, token=token)
        run_periodic(WITH_BUDGET, later, Asked(Phase.PERIODIC), fake.tools(), fake.now)
        assert (fake.state.baseline != before) is moves


@pytest.mark.parametrize(
    "fake",
    [Fake([fail()], hung={"slurm"}), Fake([fail()], slurm=shown("IDLE", "a remark")), Fake([fail()], update=1)],
)
def test_counters_stay_as_they_were_while_the_node_is_open(fake: Fake) -> None:
    before = Baseline(BOOT, AT - 300, {"port/mlx5_0/1/link_downed": 1})
    fake.state = State(boot_id=BOOT, baseline=before)
    run(fake)
    assert fake.state.baseline == before
    healthy = Fake([good()], state=fake.state)
    run(healthy)
    assert healthy.state.baseline == Baseline(BOOT, AT, {"port/mlx5_0/1/link_downed": 2})


@pytest.mark.parametrize(
    ("slurm", "hung"), [(shown("IDLE", "a remark"), ()), (SHOWN_IDLE, ("slurm",)), (shown("IDLE+DRAIN", "alice"), ())]
)
def test_no_token_is_spent_where_nothing_can_be_written(slurm: str, hung: tuple[str, ...]) -> None:
    fake = Fake([fail()], slurm=slurm, hung=hung)
    run(fake, WITH_BUDGET)
    assert fake.tokens == 0
    assert not [call for call in fake.calls if call[0] == "update"]
    assert fake.state.drain is None


def test_a_healed_node_comes_back() -> None:
    fake = Fake([good()], state=drained(), slurm=shown("IDLE+DRAIN", OURS.reason))
    ended = run(fake)
    assert fake.calls == [SHOW, RESUME]
    assert "back in service" in ended.line
    assert fake.state.drain is None
    assert fake.state.returned == (AT,)
    why = "what failed passes now: nvlink_state"
    assert [one.reason for one in fake.verdicts] == [
        f"about to return to service: {why}",
        f"the node is back in service: {why}",
    ]
    assert fake.tasks.index("keep") < fake.tasks.index("slurm"), "written down before it is done"


@pytest.mark.parametrize(
    "state",
    [
        drained(drain=OURS._replace(care=Care.HUMAN)),
        drained(drain=OURS._replace(at=AT - 10)),
        drained(returned=(AT - 1000, AT - 2000)),
        drained(drain=OURS._replace(findings=(("pcie_width", "gpu/x"),))),
    ],
)
def test_a_node_that_cannot_come_back_yet_stays_drained_and_slurm_says_so(state: State) -> None:
    fake = Fake([good()], state=state, slurm=shown("IDLE+DRAIN", OURS.reason))
    ended = run(fake)
    assert fake.calls == [SHOW]
    assert "stays drained" in ended.line
    assert fake.state.drain == state.drain
    assert [one.reason for one in fake.verdicts] == [""]


@pytest.mark.parametrize("drain", [OURS._replace(care=Care.HUMAN), drain_of(fail("xid"), at=AT - 30 * 86400)])
@pytest.mark.parametrize("slurm", [SHOWN_IDLE, shown("IDLE+DRAIN", "alice"), shown("IDLE+DRAIN", "fleetctl: y [y]")])
def test_a_drain_that_a_person_ended_long_before_it_could_come_back_is_forgotten(drain: Drain, slurm: str) -> None:
    fake = Fake([good()], state=drained(drain=drain), slurm=slurm)
    assert "stays" not in run(fake).line
    assert fake.calls == [SHOW]
    assert fake.state.drain is None
    assert run(fake).line == ""


def test_a_drain_that_is_about_to_be_written_is_not_forgotten() -> None:
    meant = drain_of(fail(), at=AT - 59)
    fake = Fake([good()], state=drained(drain=meant))
    run(fake)
    assert fake.state.drain == meant


def test_a_drain_that_a_person_ended_is_forgotten_where_the_budget_allows_no_other() -> None:
    for settings in (WITH_BUDGET, site(budget=Budget(None, 0))):
        fake = Fake([fail("ecc_mode")], state=drained(), token=(False, "spent"))
        assert run(fake, settings).verdict.decision is Decision.NO_BUDGET
        assert fake.state.drain is None


def test_what_an_epilog_finds_while_the_periodic_check_looks_keeps_the_node() -> None:
    class Meanwhile(Fake):
        def _scontrol(self, until: float) -> Run:
            asked = super()._scontrol(until)

            def run(arguments: list[str]) -> Ran:
                choice = decide([fail("xid", Care.RESET)])
                stands = Reply(Told.OURS, OURS.reason)
                self.state = remember.drained(choice, stands, readings())(self.state)
                return asked(arguments)

            return run

    fake = Meanwhile([good()], state=drained(), slurm=shown("IDLE+DRAIN", OURS.reason))
    ended = run(fake)
    assert fake.calls == [SHOW]
    assert ended.line == "the node stays drained: another look at the node has found more meanwhile"
    assert fake.state.drain is not None
    assert [check for check, _ in fake.state.drain.findings] == ["nvlink_state", "xid"]
    assert (fake.state.returned, fake.verdicts[-1].reason) == ((), ended.line)


@pytest.mark.parametrize("told", [{"slurm": shown("IDLE+DRAIN", "alice")}, {"update": 1}, {"hung": ("slurm",)}])
def test_the_history_does_not_say_back_where_the_node_is_not(told: dict[str, Any]) -> None:
    fake = Fake([good()], state=drained(), **{"slurm": shown("IDLE+DRAIN", OURS.reason), **told})
    run(fake)
    about, result = (one.reason for one in fake.verdicts)
    assert about.startswith("about to return")
    assert "is back" not in result
    assert result


@pytest.mark.parametrize("findings", [[good()], [fail()], [fail("ecc_mode")]])
@pytest.mark.parametrize("token", [(True, ""), (False, "spent")])
def test_a_reason_that_did_not_get_through_is_written_by_the_next_look(
    findings: list[Finding], token: tuple[bool, str]
) -> None:
    prolog = Fake([fail("xid", Care.RESET)], update=1)
    run_prolog(Site(), WHERE, PROLOG, prolog.tools(), prolog.now)
    meant = prolog.state.drain
    assert meant is not None
    fake = Fake(findings, state=prolog.state, slurm=shown("IDLE+DRAIN", "Prolog error", AT + 3), token=token)
    run(fake, WITH_BUDGET)
    assert fake.calls[-1] == ("update", f"nodename={NODE}", "state=drain", f"reason={meant.reason}")
    assert fake.tokens == 0
    assert fake.state.drain is not None
    assert fake.state.drain.reason == meant.reason
    assert fake.state.drain.findings[0][0] == "xid"


def test_a_healed_node_comes_back_by_itself_though_its_reason_did_not_get_through() -> None:
    prolog = Fake([fail()], update=1)
    run_prolog(Site(), WHERE, PROLOG, prolog.tools(), prolog.now)
    fake = Fake([good()], state=prolog.state, slurm=shown("IDLE+DRAIN", "Prolog error", AT + 3))
    for later_s in (900, 1200):
        run_periodic(Site(), WHERE._replace(at=AT + later_s), Asked(Phase.PERIODIC), fake.tools(), fake.now)
        assert fake.state.drain is not None or later_s == 1200
        fake.slurm = shown("IDLE+DRAIN", fake.calls[1][3].partition("=")[2], AT + later_s)
    assert fake.calls[-1] == RESUME
    assert fake.state.drain is None


@pytest.mark.parametrize(
    "slurm", [shown("IDLE"), shown("IDLE+DRAIN", "SHUTDOWN"), shown("IDLE+DRAIN", OURS.reason + "!")]
)
def test_a_drain_that_somebody_ended_or_took_over_is_forgotten(slurm: str) -> None:
    fake = Fake([good()], state=drained(), slurm=slurm)
    run(fake)
    assert fake.calls == [SHOW]
    assert fake.state.drain is None
    assert fake.state.returned == ()


@pytest.mark.parametrize(("slurm", "hung"), [("", ()), (shown("DOWN+DRAIN", OURS.reason), ()), ("", ("slurm",))])
def test_a_drain_that_cannot_be_ended_now_stands(slurm: str, hung: tuple[str, ...]) -> None:
    fake = Fake([good()], state=drained(), slurm=slurm, hung=hung)
    run(fake)
    assert fake.state.drain == OURS
    assert fake.state.returned == ()


def test_two_periodic_checks_at_once_return_the_node_once_in_the_count() -> None:
    fake = Fake([good()], state=drained(), slurm=shown("IDLE+DRAIN", OURS.reason))
    run(fake)
    fake.slurm = shown("IDLE")
    run(fake)
    assert fake.state.returned == (AT,)


@pytest.mark.parametrize(("phase", "settles"), [(Phase.PERIODIC, False), (Phase.BOOT, True)])
def test_after_a_boot_the_fabric_gets_a_minute(phase: Phase, settles: bool) -> None:
    coming = fail("fabric", mark=Mark.TRANSIENT)
    fake = Fake(*[[coming]] * 60, [good("fabric")])
    ended = run(fake, phase=phase)
    assert (ended.verdict.decision is Decision.CLEAN) is settles
    assert fake.now - 100.0 < 69


def test_verdicts_are_published_where_the_site_has_a_shared_folder() -> None:
    fake = Fake([good()])
    run(fake)
    assert fake.published == []
    run(fake, site(shared="/shared"))
    assert fake.published == [NODE]


def test_the_periodic_look_waits_for_a_driver_that_starts_anew() -> None:
    slow = Fake([good()], state=State(boot_id=BOOT), nvml_s=30.0)
    nvml = run(slow).verdict
    assert (nvml.decision, slow.now) == (Decision.CLEAN, 130.0)


def test_everything_hangs_and_the_boot_goes_on() -> None:
    fake = Fake([fail()], hung={"nvml", "files", "slurm", "keep", "budget", "publish"})
    ended = run(fake, WITH_BUDGET._replace(shared="/shared"), Phase.BOOT)
    assert ended.status == 0
    assert fake.now - 100.0 < 60 + 8 + 10


EPILOG = Job(Asked(Phase.EPILOG, (0,), "42"))
ENVIRON = {"SLURM_JOB_ID": "42", "SLURM_JOB_UID": "1000"}


def epilog(fake: Fake, environ: dict[str, str] = ENVIRON) -> Ended:
    return run_epilog(Site(), WHERE, EPILOG, fake.tools(), environ, fake.now)


def test_an_epilog_records_use_and_remembers_the_end_of_the_job_and_its_xids() -> None:
    start = JobStart(AT - 60, BOOT, ("GPU-a",), {}, uptime_s=40.0, uid=1000)
    fake = Fake([good()], state=State(boot_id=BOOT, jobs={"42": start}), hung={"clean"})
    ended = epilog(fake)
    assert ended.status == 0
    assert ended.verdict.usage is not None
    assert ended.verdict.usage["seconds"] == 64.0  # cleaning up took its 4 s
    assert fake.state.jobs["42"].ended_at == AT
    assert fake.state.app_xids == {"0000:1b:00/31": (("42", AT),)}


def test_cleaning_up_that_hangs_takes_no_time_from_the_look() -> None:
    fake = Fake([good()], hung={"clean"})
    ended = epilog(fake)
    assert fake.tasks == ["clean", "nvml", "files", "keep"]
    assert [f.check for f in ended.verdict.findings] == ["stuck"]
    slow = Fake([good()], hung={"clean", "nvml"})
    epilog(slow)
    assert slow.now - 100.0 > 4.0 + 4.0


@pytest.mark.parametrize(("slurm", "tokens"), [(shown("IDLE+DRAIN", "alice"), 0), (SHOWN_IDLE, 1)])
def test_an_epilog_spends_no_token_on_a_node_that_is_closed(slurm: str, tokens: int) -> None:
    fake = Fake([fail()], slurm=slurm, hung={"clean"})
    assert run_epilog(WITH_BUDGET, WHERE, EPILOG, fake.tools(), ENVIRON, fake.now).status == 1
    assert fake.tokens == tokens


def test_the_same_fault_closes_the_node_after_a_job_as_before_it() -> None:
    fake = Fake([fail()], hung={"clean"})
    assert epilog(fake).status == 1
    assert fake.calls[-1][2] == "state=drain"


def test_without_a_job_there_is_nothing_to_clean_up() -> None:
    fake = Fake([good()])
    assert epilog(fake, {}).verdict.usage is None
    assert "clean" not in fake.tasks
