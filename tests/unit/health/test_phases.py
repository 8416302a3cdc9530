from __future__ import annotations

from collections.abc import Sequence

import pytest

from fleetctl.health import phases
from fleetctl.health.apart import Done, Task
from fleetctl.health.decide import decide
from fleetctl.health.gather import look_again
from fleetctl.health.model import Answer, Baseline, Care, Decision, Mark, Outcome, Phase
from fleetctl.health.prolog import Ended, Job, run_prolog
from fleetctl.health.site import Budget, Site
from fleetctl.health.state import State
from fleetctl.health.tell import Reply, Told
from tests.unit.health.looks import BOOT, NODE, PROLOG, WHERE, Fake, drain_of, fail, good, shown, site, xid

TRANSIENT = fail("fabric", mark=Mark.TRANSIENT, words="the fabric comes up")
LOST = fail("gpu_lost", Care.REBOOT, mark=Mark.LOST_GPU, words="GPU 3 (0000:1b:00.0) is lost")
WITH_BUDGET = site(budget=Budget("/shared", 1))
SHOW = ("show", "node", NODE)


def run(fake: Fake, settings: Site = Site(), job: Job = PROLOG) -> Ended:  # noqa: B008 - a tuple
    return run_prolog(settings, WHERE, job, fake.tools(), fake.now)


@pytest.mark.parametrize("deadline_s", [0.5, 1.0, 8.0, 60.0])
@pytest.mark.parametrize("slurm_wait_s", [0.0, 2.0, 100.0])
@pytest.mark.parametrize("folder", [None, "/shared"])
def test_the_steps_end_one_after_the_other_and_the_last_at_the_deadline(
    deadline_s: float, slurm_wait_s: float, folder: str | None
) -> None:
    plan = phases.plan(site(deadline_s=deadline_s, slurm_wait_s=slurm_wait_s, budget=Budget(folder)), 100.0)
    assert 100.0 < plan.look <= plan.ask <= plan.token < plan.intent <= plan.slurm < plan.keep == 100.0 + deadline_s
    assert plan.look - 100.0 >= deadline_s / 2 - 1e-9
    assert (plan.ask > plan.look) is (folder is not None and slurm_wait_s > 0)


@pytest.mark.parametrize(
    "hung", [{"nvml", "files", "budget", "slurm", "keep"}, {"nvml"}, {"slurm"}, {"keep"}, {"files"}]
)
@pytest.mark.parametrize("settings", [Site(), WITH_BUDGET])
def test_the_prolog_answers_in_time_whatever_hangs(hung: set[str], settings: Site) -> None:
    fake = Fake([LOST], hung=hung)
    assert run(fake, settings).status == 1
    assert fake.now - 100.0 <= settings.deadline_s + 0.001


def test_a_healthy_node_is_silent_and_asks_slurm_nothing() -> None:
    fake = Fake([good()])
    ended = run(fake, WITH_BUDGET)
    assert (ended.status, ended.line, ended.verdict.decision) == (0, "", Decision.CLEAN)
    assert fake.calls == []
    assert fake.tokens == 0
    assert fake.tasks == ["nvml", "files", "keep"]


def test_a_fault_drains_the_node_with_a_reason_and_fails_the_prolog() -> None:
    fake = Fake([good(), fail()])
    ended = run(fake)
    assert ended.status == 1
    assert ended.line == "fleetctl: GPU 3 (0000:1b:00.0): 17 of 18 NVLinks are up [nvlink_state]"
    assert fake.calls == [SHOW, ("update", f"nodename={NODE}", "state=drain", f"reason={ended.line}")]
    assert fake.state.drain == drain_of(fail(), reason=ended.line, at=WHERE.at)
    assert fake.verdicts[0].findings == (fail(),)
    assert fake.verdicts[0].passed == 1


def test_what_is_normal_is_not_written_down() -> None:
    normal = fail("fabric", Care.IGNORE, outcome=Outcome.CANNOT_TELL)
    ended = run(Fake([normal, fail(care=Care.WATCH)]))
    assert ended.verdict.findings == (fail(care=Care.WATCH),)
    assert ended.findings == (normal, fail(care=Care.WATCH))


def test_the_budget_is_asked_before_the_node_is_closed_and_only_where_it_would_be() -> None:
    fake = Fake([fail()])
    run(fake, WITH_BUDGET)
    assert fake.tasks == ["nvml", "files", "slurm", "budget", "keep", "slurm", "keep"]
    assert fake.tokens == 1


@pytest.mark.parametrize("slurm", [shown("IDLE+DRAIN", "alice: driver"), shown("IDLE+DRAIN", "fleetctl: x [y]")])
def test_no_token_is_spent_on_a_node_that_is_closed(slurm: str) -> None:
    fake = Fake([fail()], slurm=slurm, token=(False, "spent"))
    assert run(fake, WITH_BUDGET).status == 1
    assert fake.tokens == 0
    assert fake.calls == [SHOW]


@pytest.mark.parametrize("fake", [Fake([fail()], slurm=shown("IDLE", "a remark")), Fake([fail()], hung={"slurm"})])
def test_a_token_is_spent_where_our_exit_status_closes_the_node(fake: Fake) -> None:
    assert run(fake, WITH_BUDGET).status == 1
    assert fake.tokens == 1


def test_the_drain_is_written_down_before_slurm_is_told() -> None:
    """Whoever comes after a prolog that was killed in between finds the word, and the evidence for it."""

    class KilledFake(Fake):
        def apart(self, tasks: Sequence[Task]) -> dict[str, Done]:
            if tasks[0].name == "slurm":
                raise KeyboardInterrupt
            return super().apart(tasks)

    fake = KilledFake([fail()])
    with pytest.raises(KeyboardInterrupt):
        run(fake)
    assert fake.state.drain is not None
    assert [(one.decision, one.reason) for one in fake.verdicts] == [(Decision.DRAIN, fake.state.drain.reason)]


@pytest.mark.parametrize("fake", [Fake([fail()], token=(False, "1 of 1 spent")), Fake([fail()], hung={"budget"})])
def test_without_budget_the_job_starts_and_the_finding_stays(fake: Fake) -> None:
    fake.state = State(boot_id=BOOT, events=(xid(),))
    ended = run(fake, WITH_BUDGET)
    assert (ended.status, ended.line, ended.verdict.decision) == (0, "", Decision.NO_BUDGET)
    assert [f.check for f in ended.verdict.findings] == ["nvlink_state", "budget"]
    assert fake.calls == [SHOW]
    assert fake.state.drain is None
    assert not any(event.told for event in fake.state.events)
    assert "42" in fake.state.jobs


def test_a_site_may_forbid_every_drain() -> None:
    fake = Fake([fail()])
    ended = run(fake, site(budget=Budget(None, 0)))
    assert (ended.status, ended.verdict.decision) == (0, Decision.NO_BUDGET)
    assert fake.tokens == 0


def test_a_lost_gpu_drains_without_budget() -> None:
    fake = Fake([LOST], token=(False, "1 of 1 spent"))
    assert run(fake, WITH_BUDGET).status == 1
    assert fake.calls[-1][2] == "state=drain"


def test_what_comes_up_in_time_is_waited_for() -> None:
    fake = Fake([TRANSIENT], [TRANSIENT], [good("fabric")])
    ended = run(fake)
    assert (ended.status, fake.slept) == (0, 1.0)
    assert fake.tasks == ["nvml", "files", "nvml", "ports", "nvml", "ports", "keep"]


def test_what_does_not_come_up_closes_the_node_after_the_settle_time() -> None:
    fake = Fake([TRANSIENT])
    assert run(fake, site(settle_s=2.0)).status == 1
    assert 1.0 <= fake.slept <= 2.0


def test_waiting_ends_with_the_time_for_looking() -> None:
    fake = Fake([TRANSIENT])
    assert run(fake, site(deadline_s=2.0, settle_s=100.0)).status == 1
    assert fake.now <= 102.0


@pytest.mark.parametrize(("nvml_s", "looks"), [(0.0, 6), (1.0, 3), (1.7, 2), (2.0, 1), (2.5, 1), (3.0, 1)])
def test_a_slow_driver_is_not_asked_again_without_ample_time(nvml_s: float, looks: int) -> None:
    """A read that is cut short would say that NVML does not answer, and ask for a reboot."""
    fake = Fake([TRANSIENT], nvml_s=nvml_s)
    tools = fake.tools()
    seen = phases.look(tools, WHERE, 105.25, 3.0)
    assert fake.tasks.count("nvml") == looks
    assert seen.readings.nvml is not None
    assert seen.readings.nvml.answer is Answer.ANSWERED


def test_a_driver_that_answered_once_did_not_hang() -> None:
    fake = Fake([TRANSIENT])
    tools = fake.tools()
    first = phases.look(tools, WHERE, 105.0, 0.0).gathered
    fake.hung = {"nvml"}
    again = look_again(first, tools.readers, 1.0, tools.apart)
    assert again.readings.nvml == first.readings.nvml
    assert again.notes == ("nvml, asked again: hung: no answer",)


def test_nothing_is_waited_for_where_waiting_mends_nothing() -> None:
    fake = Fake([TRANSIENT, fail()], [good("fabric"), good()])
    assert run(fake).status == 1
    assert fake.slept == 0


def test_an_admins_drain_stays_and_the_job_goes_elsewhere() -> None:
    fake = Fake([fail()], slurm=shown("IDLE+DRAIN", "SHUTDOWN"))
    ended = run(fake)
    assert ended.status == 1
    assert "somebody else" in ended.line
    assert fake.calls == [SHOW]
    assert fake.state.drain is None


@pytest.mark.parametrize("hung", [(), ("slurm",)])
def test_a_slurm_that_does_not_answer_changes_nothing_in_the_decision(hung: tuple[str, ...]) -> None:
    fake = Fake([fail()], slurm="", hung=hung)
    ended = run(fake)
    assert ended.status == 1
    assert "scontrol" in ended.line
    assert fake.state.drain is not None, "it was meant; Slurm's own word will tell whether it stands"


def test_an_update_without_an_answer_is_remembered_as_ours() -> None:
    fake = Fake([fail()], update=1)
    run(fake)
    assert fake.state.drain is not None
    assert not any(event.told for event in fake.state.events)


def test_what_a_drain_named_does_not_close_the_node_again() -> None:
    other = xid(8, pci="0000:43:00")
    fake = Fake([fail("xid", Care.REBOOT)], events=(xid(), other))
    run(fake)
    assert [(event.pci, event.told) for event in fake.state.events] == [("0000:1b:00", True), ("0000:43:00", False)]
    assert fake.state.cursor == 9


def test_a_second_drain_of_the_same_reason_adds_what_must_pass() -> None:
    first = drain_of(fail("pcie_width"), reason="fleetctl: x [pcie_width]", at=0.0)
    fake = Fake([fail()], state=State(boot_id=BOOT, drain=first), slurm=shown("IDLE+DRAIN", first.reason))
    run(fake)
    assert fake.state.drain is not None
    assert [check for check, _ in fake.state.drain.findings] == ["pcie_width", "nvlink_state"]


def test_a_drain_of_ours_that_the_state_does_not_know_is_for_a_person_to_end() -> None:
    older = "fleetctl: something older [xid]"
    fake = Fake([fail()], slurm=shown("IDLE+DRAIN", older))
    assert run(fake).status == 1
    assert fake.state.drain is not None
    assert fake.state.drain.reason != older, "so that no look ends the older one"


def port_errors(fake: Fake) -> int | None:
    baseline = fake.state.baseline
    return None if baseline is None else baseline.counters["port/mlx5_0/1/link_downed"]


@pytest.mark.parametrize(
    ("fake", "renewed"),
    [
        (Fake([fail()]), True),
        (Fake([fail()], slurm=shown("IDLE+DRAIN", "fleetctl: x [y]")), True),
        (Fake([fail()], slurm=shown("IDLE+DRAIN", "alice: fans")), True),
        (Fake([fail()], slurm=shown("IDLE", "alice: watch the fans")), False),
        (Fake([fail()], slurm=""), False),
        (Fake([fail()], hung={"slurm"}), False),
        (Fake([fail()], update=1), False),
    ],
)
@pytest.mark.parametrize("age_s", [60.0, 7200.0])
def test_the_evidence_of_counters_is_used_up_only_by_a_drain_that_stands(
    fake: Fake, renewed: bool, age_s: float
) -> None:
    before = Baseline(BOOT, WHERE.at - age_s, {"port/mlx5_0/1/link_downed": 1})
    fake.state = State(boot_id=BOOT, baseline=before)
    assert run(fake).status == 1
    assert port_errors(fake) == (2 if renewed else 1)


def test_the_jobs_start_is_remembered_with_its_own_counters() -> None:
    fake = Fake([good()])
    run(fake)
    start = fake.state.jobs["42"]
    assert (start.gpus, start.uid, start.uptime_s) == (("GPU-a",), 1000, 1000.0)
    assert start.counters == {"port/mlx5_0/1/link_downed": 2}
    assert fake.state.baseline is not None


def test_a_job_that_does_not_start_is_not_remembered() -> None:
    fake = Fake([fail()])
    run(fake)
    assert fake.state.jobs == {}


def test_a_finding_made_before_the_look_is_in_the_verdict() -> None:
    note = fail("job_gpus", Care.WATCH)
    assert run(Fake([good()]), job=PROLOG._replace(told=(note,))).verdict.findings == (note,)


def test_a_disk_that_hangs_is_a_note_and_not_a_failure() -> None:
    ended = run(Fake([good()], hung={"keep"}))
    assert ended.status == 0
    assert ended.notes == ("state and verdict not kept: hung: no answer",)


def test_mounts_hang_one_by_one() -> None:
    fake = Fake([good()], hung={"mount-1"})
    tools = fake.tools()
    seen = phases.look(tools, WHERE._replace(mounts=("/a", "/b")), 105.0, 0.0)
    host = seen.readings.host
    assert host is not None
    assert [(mount.path, mount.state) for mount in host.mounts] == [("/a", "ok"), ("/b", "hung")]


def test_one_broken_part_of_the_files_leaves_the_others() -> None:
    def broken() -> None:
        raise ValueError("no such thing")

    fake = Fake([good()])
    tools = fake.tools()
    tools = tools._replace(readers=tools.readers._replace(ports=broken))
    seen = phases.look(tools, WHERE, 105.0, 0.0)
    assert seen.readings.ports is None
    assert seen.readings.devices == ()
    assert seen.readings.failed == {"ports": Answer.FAILED}
    assert seen.gathered.notes == ("ports: ValueError: no such thing",)


def test_unread_files_are_named_and_nothing_else_is_made_up() -> None:
    seen = phases.look(Fake([good()], hung={"files"}).tools(), WHERE, 105.0, 0.0)
    assert seen.readings.failed == {"files": Answer.HUNG}
    assert (seen.readings.ports, seen.readings.events, seen.readings.host) == (None, None, None)


def test_a_reply_of_slurm_survives_the_way_out_of_the_child() -> None:
    fake = Fake(slurm=shown("IDLE+DRAIN", "fleetctl: x [y]"))
    reply = phases.slurm(fake.tools(), lambda run: Reply(Told.OURS, run(["show"]).text, "d"), 105.0)
    assert (reply.told, reply.detail) == (Told.OURS, "d")


def test_a_verdict_says_which_job_it_is_about() -> None:
    seen = phases.look(Fake([fail()]).tools(), WHERE, 105.0, 0.0)
    verdict = phases.verdict_of(seen, Phase.PROLOG, decide(seen.findings), 1.23456, job_id="42")
    assert (verdict.node, verdict.job_id, verdict.took_s, verdict.boot_id) == (NODE, "42", 1.235, BOOT)
