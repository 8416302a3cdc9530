"""Runs as a pass of the recovery daemon sees them, for tests: one plain run of two nodes, changed at will."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from fleetctl.recovery.decide import decide
from fleetctl.recovery.model import (
    Action,
    Advice,
    CauseClass,
    Decision,
    Deed,
    Done,
    Evidence,
    Facts,
    Interruption,
    Memory,
    Outcome,
    RunSeen,
    Snapshot,
    Suspected,
)
from fleetctl.recovery.policy import Deeds, Mode, Policy
from fleetctl.rundir.history import History
from fleetctl.rundir.model import Attempt, Ending, RunKind, RunRecord, SubmissionState
from fleetctl.rundir.pulse import Pulse
from fleetctl.slurm.model import AdminLevel, Job, JobId, JobState, Node
from fleetctl.submission.decide_requeue import Past

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CLUSTER = "c"
OWNER = Policy(deeds=Deeds.ACT)
ADMINISTRATOR = Policy(mode=Mode.OPERATOR, level=AdminLevel.ADMINISTRATOR, deeds=Deeds.ACT)
GPU = Suspected(CauseClass.GPU, Advice.ELSEWHERE, "log: uncorrectable ECC error", "n1")
NODE = Suspected(CauseClass.NODE, Advice.ELSEWHERE, "slurm: n1 is down", "n1")
NOBODY = Suspected(CauseClass.UNKNOWN, Advice.SAME, "nothing known")
STOP = Suspected(CauseClass.CONFIGURATION, Advice.STOP, "log: no module named x")


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def node(name: str, base: str = "IDLE", *flags: str, reason: str = "", **changes: Any) -> Node:
    made = Node(name, base, frozenset(flags), reason, "", ago(5) if reason else None, 8, 0, "", 8, 1000, ("main",))
    return replace(made, **changes)


def job(state: str = "RUNNING", **changes: Any) -> Job:
    made = Job(
        id=JobId(7),
        raw_id=7,
        pending_tasks="",
        name="r",
        user="ann",
        state=JobState.parse(state),
        reason="None",
        comment="",
        partition="main",
        account="",
        node_list="n[1-2]" if state in ("RUNNING", "SUSPENDED") else "",
        node_count=2,
        submit_time=None,
        start_time=ago(3600),
        end_time=None,
        time_limit_s=None,
        command="",
        work_dir="",
        dependency="",
        excluded_nodes="",
        priority=1,
        gres_per_node="",
    )
    return replace(made, **changes)


def waiting(**changes: Any) -> Job:
    """It waits for Slurm's BeginTime after a requeue."""
    return job("PENDING", **{"reason": "BeginTime", "start_time": NOW + timedelta(seconds=90), **changes})


def attempt(name: str = "1.0", **changes: Any) -> Attempt:
    return replace(Attempt(name, "7", "n1", ago(3600), resume_step=100, nodes="n[1-2]"), **changes)


def failed(name: str = "1.0", **changes: Any) -> Attempt:
    made = attempt(name, ended_at=ago(40), exit_code=1, ending=Ending.FAILED, failure="exit 1", progress_step=200)
    return replace(made, **changes)


def history(*attempts: Attempt, **changes: Any) -> History:
    record = RunRecord("r-1", "r", "ann", ago(9000), RunKind.PLAIN, "d", "/s/t.yaml", "/w", 2, 1, CLUSTER, "0")
    made = History(
        record, 1, SubmissionState.SUBMITTED, "7", CLUSTER, ago(9000), "", (), None, None, {}, attempts or (attempt(),)
    )
    return replace(made, **changes)


def pulse(**changes: Any) -> Pulse:
    return replace(Pulse("1.0", "7", 0, "n1", ago(3), 5, "step", training_step=250, checkpoint_step=200), **changes)


def run(told: History | None = None, *jobs: Job, key: str = "r-1", **changes: Any) -> RunSeen:
    """Running, if nothing else is said; `restarts` 1 where its job waits."""
    there = jobs or (job(),)
    restarts = 1 if there[0].state.base == "PENDING" else 0
    facts = Facts(told or history(), 3, True, True, 2, 16, past=Past(0, False, None))
    made = RunSeen(key, key.partition("/")[0], None, "ann", "/runs/r-1", facts, pulse(), there, restarts=restarts)
    return replace(made, **changes)


def with_facts(seen: RunSeen, **changes: Any) -> RunSeen:
    assert seen.facts is not None
    return replace(seen, facts=replace(seen.facts, **changes))


def snapshot(*runs: RunSeen, **changes: Any) -> Snapshot:
    made = Snapshot(NOW, CLUSTER, runs, fleet(), (), (), controller_since=ago(86_400))
    return replace(made, **changes)


def fleet(*changed: Node) -> tuple[Node, ...]:
    """Eight nodes, of which these are not as they should be."""
    other = {one.name: one for one in changed}
    return tuple(other.get(f"n{number}", node(f"n{number}")) for number in range(1, 9))


def known(*causes: Suspected, **changes: Any) -> Interruption:
    """What is remembered of the end of the attempt 1.0."""
    first = causes[0] if causes else NOBODY
    made = Interruption(
        key="r-1",
        attempt="1.0",
        start="c/7/0",
        at=ago(40),
        causes=causes or (NOBODY,),
        fingerprint=f"{first.cause}: {first.evidence}",
        nodes=("n1", "n2"),
        progress_step=200,
        ran_s=3000.0,
        user="ann",
    )
    return replace(made, **changes)


def done(deed: Deed, outcome: Outcome = Outcome.DONE, *, age_s: float = 60, **changes: Any) -> Done:
    made = Action(deed, "r-1", "c/7/0", "why", "rule")
    return Done(replace(made, **changes), ago(age_s), outcome)


def memory(*interruptions: Interruption, entries: tuple[Done, ...] = (), **changes: Any) -> Memory:
    return replace(Memory(done=entries, interruptions=interruptions), **changes)


def nothing_known(seen: RunSeen, attempt: Attempt, evidence: Evidence) -> tuple[tuple[Suspected, ...], str]:
    return (NOBODY,), "unknown"


def decided(seen: Snapshot, remembered: Memory | None = None, policy: Policy = OWNER) -> Decision:
    return decide(seen, remembered or Memory(), policy, nothing_known)


def deeds(decision: Decision) -> list[Deed]:
    return [action.deed for action in decision.actions]


def rule(decision: Decision, key: str = "r-1") -> str:
    return next(verdict.rule for verdict in decision.verdicts if verdict.key == key)
