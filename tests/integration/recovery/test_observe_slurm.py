"""What a pass sees of real runs on a real Slurm, as their owner and as a service of the site."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from fleetctl.clock import SystemClock
from fleetctl.recovery.evidence import gather_evidence
from fleetctl.recovery.kept import Seen
from fleetctl.recovery.model import RunSeen, Snapshot
from fleetctl.recovery.mounts import Readers
from fleetctl.recovery.observe import observe
from fleetctl.recovery.sources import Sources
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.slurm.connect import connect
from fleetctl.submission.decide_requeue import Phase, phase
from tests.support import Cli, wait_until, write_spec

pytestmark = pytest.mark.slurm
ME = pwd.getpwuid(os.geteuid()).pw_name
CLOCK = SystemClock()
SPEC = """\
name: seen
resources: {{nodes: 1, gpus_per_node: 2, time: 10m}}
recovery: {{requeue: true}}
command: "while [ ! -e {folder}/end ]; do sleep 0.1; done; exit 3"
"""


class Eyes:
    """Passes over one run, by its owner's daemon or by one for all users."""

    def __init__(self, cli: Cli, readers: Readers, root: str | None) -> None:
        slurm = connect(cli.environ, CLOCK)
        cluster = slurm.config()["ClusterName"]
        self.sources = Sources(slurm=slurm, cluster=cluster, user=ME, root=root, readers=readers)
        self.seen = Seen()

    def look(self) -> Snapshot:
        snapshot, self.seen = observe(self.sources, self.seen, CLOCK.now())
        return snapshot

    def one(self, run_id: str) -> RunSeen:
        (found,) = [run for run in self.look().runs or () if run.run_id == run_id]
        return found


@pytest.fixture
def readers() -> Iterator[Readers]:
    with Readers(time.monotonic) as made:
        yield made


@pytest.mark.parametrize("mode", ["owner", "operator"])
def test_a_run_is_seen_from_its_start_over_a_requeue_to_its_end(
    sandbox: Sandbox, readers: Readers, tmp_path: Path, mode: str
) -> None:
    cli = Cli(sandbox.environment(os.environ), tmp_path / "runs")
    submitted = cli.json("submit", str(write_spec(tmp_path, SPEC.format(folder=tmp_path))))
    run_id, job_id = submitted["run_id"], submitted["job_id"]
    eyes = Eyes(cli, readers, str(cli.runs) if mode == "owner" else None)
    try:
        wait_until(lambda: eyes.one(run_id).pulse is not None, "the head's first word")
        one = eyes.one(run_id)
        assert one.facts is not None
        assert one.pulse is not None
        assert (one.user, one.task, one.trouble, one.restarts, one.facts.gpus) == (ME, None, "", 0, 2)
        assert (one.pulse.attempt, one.pulse.job_id, one.pulse.restart_count) == ("1.0", job_id, 0)
        assert [job.batch_host for job in one.jobs or ()] == [one.pulse.host]

        cli.slurm("scontrol", "requeue", job_id)
        wait_until(lambda: eyes.one(run_id).restarts == 1, "the requeue")
        wait_until(lambda: {phase(job.state) for job in eyes.one(run_id).jobs or ()} == {Phase.WAITS}, "the queue")
        cli.slurm("scontrol", "update", f"JobId={job_id}", "StartTime=now")
        wait_until(lambda: eyes.one(run_id).gpus == 2, "its GPUs")
        wait_until(lambda: (pulse := eyes.one(run_id).pulse) is not None and pulse.attempt == "2.0", "the next attempt")
        one = eyes.one(run_id)
        assert one.facts is not None
        assert [attempt.name for attempt in one.facts.history.attempts] == ["1.0", "2.0"]
        assert one.facts.past is not None
        assert one.facts.past.restart_count == 1

        (tmp_path / "end").touch()
        wait_until(lambda: {phase(job.state) for job in eyes.one(run_id).jobs or ()} == {Phase.ENDED}, "its end")
        snapshot, _ = gather_evidence(eyes.sources, eyes.seen, eyes.look(), {run_id: "2.0"})
        (one,) = [run for run in snapshot.runs or () if run.run_id == run_id]
        assert one.evidence is None or one.evidence.records is None, "this cluster keeps no accounting"
        assert snapshot.maintenance == ()
        assert snapshot.controller_since is not None
        assert timedelta(0) < CLOCK.now() - snapshot.controller_since
        assert {node.name for node in snapshot.nodes or ()} >= {"node1", "node2"}
    finally:
        (tmp_path / "end").touch()
        cli("cancel", run_id)
