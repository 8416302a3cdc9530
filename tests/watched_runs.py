"""Runs in real folders, and a Slurm that says what it is told to: for tests of what the recovery daemon sees."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import msgspec

from fleetctl.errors import JobUnknown
from fleetctl.recovery.mounts import Question
from fleetctl.recovery.read_wire import Told, frame, told_in
from fleetctl.recovery.reader import answers
from fleetctl.recovery.sources import Sources
from fleetctl.rundir.model import EventKind, RunKind, RunRecord
from fleetctl.rundir.pulse import Pulse, pulse_out
from fleetctl.rundir.store import RunDir, Store
from fleetctl.slurm.model import Job, JobId, JobRecord, JobState, Node, Reservation
from fleetctl.slurm.port import Slurm

AT = datetime(2026, 11, 30, 12, tzinfo=UTC)
BEGAN = AT - timedelta(hours=1)
SPEC: Mapping[str, Any] = {
    "name": "r",
    "resources": {"nodes": 2, "spare_nodes": 1, "gpus_per_node": 8},
    "checkpoint": {"dir": "/c", "format": "own"},
    "recovery": {"requeue": None, "chain": True, "max_failures": 5, "daemon": True},
}


def a_run(root: Path, run_id: str, user: str, *, spec: Mapping[str, Any] = SPEC, **record: Any) -> RunDir:
    """A run that was submitted as job 7."""
    store = Store(root)
    store.ensure()
    assert store.reserve(run_id)
    values: dict[str, Any] = {
        **{"run_id": run_id, "name": "r", "user": user, "created_at": BEGAN, "kind": RunKind.PLAIN},
        **{"spec_digest": "d", "spec_source": "/s/t.yaml", "workdir": "/w", "nodes": 2, "tasks": 1},
        **{"cluster": "c", "fleetctl_version": "0"},
    }
    run = store.fill(RunRecord(**{**values, **record}), "name: r\n", dict(spec))
    log = run.event_log("submit")
    log.append(BEGAN, EventKind.INTENT, submission=1)
    log.append(BEGAN, EventKind.SUBMITTED, submission=1, job_id="7", cluster=record.get("cluster", "c"))
    return run


def started(
    run: RunDir, attempt: str = "1.0", job_id: str = "7", *, at: datetime = BEGAN, task: int | None = None
) -> None:
    run.event_log(f"job-{attempt}").append(
        at, EventKind.ATTEMPT_STARTED, attempt=attempt, job_id=job_id, host="n1", nodes="n[1-2]", task=task
    )


def ended(run: RunDir, attempt: str = "1.0", *, code: int = 1, ending: str = "failed", task: int | None = None) -> None:
    run.event_log(f"end-{attempt}").append(
        AT - timedelta(minutes=1), EventKind.ATTEMPT_ENDED, attempt=attempt, exit_code=code, ending=ending, task=task
    )


def a_pulse(**fields: Any) -> Pulse:
    values = {"attempt": "1.0", "job_id": "7", "restart_count": 0, "host": "n1", "at": AT, "events": 1, "phase": "step"}
    return Pulse(**{**values, **fields})


def beat(run: RunDir, task: int | None = None, **fields: Any) -> None:
    folder = run.path if task is None else run.path / "tasks" / str(task)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pulse.json").write_text(json.dumps(pulse_out(a_pulse(**fields))))


def a_job(run: RunDir | None, user: str, state: str = "RUNNING", *, id: str = "7", raw: int = 7, **fields: Any) -> Job:
    values: dict[str, Any] = {
        **{"id": JobId.parse(id), "raw_id": raw, "pending_tasks": "", "name": "r", "user": user},
        **{"state": JobState.parse(state), "reason": "", "comment": "", "partition": "p", "account": ""},
        **{"node_list": "n[1-2]" if state == "RUNNING" else "", "node_count": 2, "submit_time": BEGAN},
        **{"start_time": BEGAN, "end_time": None, "time_limit_s": None, "work_dir": "/w", "dependency": ""},
        **{"command": "" if run is None else str(run.script(1)), "excluded_nodes": "", "priority": 1},
        **{"gres_per_node": "", "batch_host": "n1" if state == "RUNNING" else "", "restarts": 0},
    }
    return Job(**{**values, **fields})


def a_node(name: str, base: str = "MIXED", *flags: str) -> Node:
    return Node(name, base, frozenset(flags), "", "", None, 8, 0, "gpu:8", 8, 1, ("p",))


class SaidSlurm:
    """What Slurm says; an exception is raised. `calls` are the verbs that were asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.jobs_said: Sequence[Job] | Exception = ()
        self.nodes_said: Sequence[Node] | Exception = (a_node("n1"), a_node("n2"))
        self.reservations_said: Sequence[Reservation] | Exception = ()
        self.config_said: Mapping[str, str] | Exception = {"BOOT_TIME": "1796000000"}
        self.history_said: Sequence[JobRecord] | Exception = ()
        self.gpus_said: int | Exception | None = 16

    def _said(self, verb: str, value: Any) -> Any:
        self.calls.append(verb)
        if isinstance(value, Exception):
            raise value
        return value

    def starts(self, *, user: str | None = None) -> tuple[Job, ...]:
        found = self._said("starts", self.jobs_said)
        return tuple(job for job in found if user in (None, job.user))

    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._said("nodes", self.nodes_said))

    def reservations(self) -> tuple[Reservation, ...]:
        return tuple(self._said("reservations", self.reservations_said))

    def config(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", self._said("config", self.config_said))

    def gpus(self, job: Job) -> int | None:
        return cast("int | None", self._said(f"gpus {job.id}", self.gpus_said))

    def history(self, *, since: datetime, user: str | None = None, ids: Sequence[JobId] = ()) -> tuple[JobRecord, ...]:
        return tuple(self._said(f"history {','.join(map(str, ids))}", self.history_said))

    def allocation(self, job_id: JobId) -> object:
        raise JobUnknown(str(job_id))


class Here:
    """Reads folders in this process, over the wire all the same. `fails` are paths that do not answer."""

    def __init__(self) -> None:
        self.fails: Callable[[bytes], str] = lambda path: ""
        self.asked: list[msgspec.Struct] = []

    def ask(self, questions: Sequence[Question]) -> list[tuple[Told, ...]]:
        from fleetctl.recovery.read_wire import Failed

        self.asked += [one.ask for one in questions]
        return [
            (Failed(why),)
            if (why := self.fails(one.ask.path))
            else tuple(told_in(frame(told)[4:]) for told in answers(one.ask))
            for one in questions
        ]


def sources(slurm: SaidSlurm, here: Here, root: Path | None, user: str, **fields: Any) -> Sources:
    place = None if root is None else str(root)
    return Sources(slurm=cast("Slurm", slurm), cluster="c", user=user, root=place, readers=here, **fields)
