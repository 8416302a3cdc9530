"""The installed node checks under a real slurmd: a sick node drains itself, a healthy one never does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.checked import Checked, word_of
from tests.integration.conftest import MakeSandbox, short_dir
from tests.nvml.healthy_variants import HEALTHY
from tests.nvml.scenario import Node, healthy, site_settings
from tests.nvml.sick_variants import SICK
from tests.support import Cli, wait_until

pytestmark = pytest.mark.slurm

SHOWN = (
    "nvlink_down",
    "sram_threshold_passed",
    "row_remap_failed",
    "infiniband_width_2x",
    "xid_79",
    "fallen_off_the_bus_without_xid",
    "init_hangs",
)
# A job of all eight GPUs and nothing that changes while it is looked at: the others are in tests/integration/health.
MISJUDGED = {
    name: one for name, one in HEALTHY.items() if one.gpus is None and not one.later and one.platform != "gb200"
}


@pytest.fixture
def folder() -> Iterator[Path]:
    directory = short_dir()
    yield directory
    shutil.rmtree(directory)


def learnt(folder: Path, name: str) -> bytes:
    """A profile as an operator makes it, on a good node."""
    site = folder / "learn.json"
    site.write_text(json.dumps(site_settings(folder / "nvml")))
    out = folder / "profile.json"
    done = Cli({"SLURMD_NODENAME": name, "PATH": "/usr/bin:/bin"}, folder / "runs")(
        "node", "learn", "--site", str(site), "--out", str(out)
    )
    assert done.returncode == 0, done.stderr
    return out.read_bytes()


def test_every_sickness_drains_its_own_node_and_the_jobs_run_elsewhere(folder: Path, make_sandbox: MakeSandbox) -> None:
    sick = {f"node{number}": SICK[name] for number, name in enumerate(SHOWN, start=1)}
    well = [f"node{len(sick) + 1}", f"node{len(sick) + 2}"]
    checked = Checked(
        folder, [*(one.node(name) for name, one in sick.items()), *(healthy("h100-sxm", name) for name in well)]
    )
    checked.start(make_sandbox, {"deadline_s": 5}, profile=learnt(folder, well[0]))
    checked.cli.slurm("scontrol", "update", f"nodename={','.join(well)}", "state=drain", "reason=new fans")
    runs = [checked.submit("sleep 0.2", again=True) for _ in sick]
    wait_until(lambda: len(checked.drained()) == len(sick) + len(well), "every sick node is drained", 90)
    why = checked.drained()
    assert {name: why.pop(name) for name in well} == dict.fromkeys(well, "new fans"), "an admin's word stays"
    for name, reason in why.items():
        assert reason.startswith("fleetctl: "), name
        assert not sick[name].lacks(reason), reason
    checked.cli.slurm("scontrol", "update", f"nodename={','.join(well)}", "state=resume")
    for run in runs:
        assert checked.cli.json("wait", run["run_id"], "--timeout", "100")["state"] == "completed"
        assert checked.job(run["job_id"], "NodeList") in well
        assert checked.job(run["job_id"], "Restarts") == "1", "nobody released it, and one try was enough"
    assert set(checked.drained()) == set(sick)
    for name in well:
        assert {one["decision"] for one in checked.spool(name)} <= {"clean", "noted"}


def test_nodes_that_others_drain_by_mistake_run_their_jobs(folder: Path, make_sandbox: MakeSandbox) -> None:
    assert len(MISJUDGED) >= 20
    nodes = {f"node{number}": one for number, one in enumerate(MISJUDGED.values(), start=1)}
    site = {key: value for one in nodes.values() for key, value in one.site.items()}
    checked = Checked(folder, [one.node(name) for name, one in nodes.items()])
    checked.start(make_sandbox, {**site, "deadline_s": 40}, look_every_s=20)  # dozens of nodes share two cores
    run = checked.submit("sleep 1", nodes=len(nodes))
    assert checked.cli.json("wait", run["run_id"], "--timeout", "100")["state"] == "completed"
    every = {"prolog", "epilog", "periodic"}
    wait_until(lambda: all(every <= set(checked.phases(name)) for name in nodes), "all phases have looked", 100)
    for name, one in nodes.items():
        said = checked.spool(name)
        assert {verdict["decision"] for verdict in said} <= {"clean", "noted"}, (one.name, word_of(said))
    assert checked.drained() == {}
    assert checked.job(run["job_id"], "Restarts") == "0"


def broken(name: str) -> Node:
    node = healthy("h100-sxm", name)
    node.gpu(3).links[7].state = 0
    return node


def test_a_node_comes_back_when_its_part_is_well_but_not_for_ever_and_not_for_an_admin(
    folder: Path, make_sandbox: MakeSandbox
) -> None:
    checked = Checked(folder, [broken("node1"), broken("node2"), healthy("h100-sxm", "node3")])
    back = {"most": 1, "window_s": 3600, "cool_down_s": 1}
    checked.start(make_sandbox, {"back": back, "shared": str(folder / "said")}, look_every_s=2)
    (folder / "said").mkdir(exist_ok=True)
    wait_until(lambda: set(checked.drained()) == {"node1", "node2"}, "both drain themselves while no job runs")
    assert "NVLink 7 of GPU 3" in checked.drained()["node1"]
    checked.cli.slurm("scontrol", "update", "nodename=node2", "state=drain", "reason=broken fan")
    for name in ("node1", "node2"):
        checked.change(healthy("h100-sxm", name))
    checked.await_state("node1", "IDLE")
    before = len(checked.spool("node2"))
    wait_until(lambda: len(checked.spool("node2")) > before + 2, "it goes on looking")
    assert checked.drained() == {"node2": "broken fan"}
    checked.change(broken("node1"))
    wait_until(lambda: "node1" in checked.drained(), "it is broken again")
    checked.change(healthy("h100-sxm", "node1"))
    before = len(checked.spool("node1"))
    wait_until(lambda: len(checked.spool("node1")) > before + 3, "it goes on looking")
    assert set(checked.drained()) == {"node1", "node2"}, "it came back as often as it may"
    listed = checked.cli.json("node", "ls", "--shared", str(folder / "said"))
    assert {one["node"] for one in listed} == {"node1", "node2", "node3"}


def test_the_epilog_of_one_job_leaves_the_other_of_the_same_user_alone(folder: Path, make_sandbox: MakeSandbox) -> None:
    """Each leaves a process that has left its session, and a file in /dev/shm."""
    checked = Checked(folder, [healthy("h100-sxm", "node1")])
    real = {"proc": "/proc", "shm": "/dev/shm", "tmp": [str(folder / "tmp")]}
    (folder / "tmp").mkdir(mode=0o1777)
    (folder / "tmp").chmod(0o1777)
    checked.start(make_sandbox, real)
    script = folder / "job.sh"
    script.write_text(
        "#!/bin/bash\n"
        'echo left > /dev/shm/job-$1; echo left > "$2/tmp/job-$1"\n'
        "setsid --fork sleep 1000 </dev/null >/dev/null 2>&1\n"
        'while [ ! -e "$2/end-$1" ]; do sleep 0.1; done\n'
    )
    jobs = {}
    for name in ("one", "two"):
        words = ["sbatch", "--parsable", "--uid=nobody", "--gpus=4", "--mem=1G", "-n1", "--chdir=/tmp"]
        jobs[name] = checked.cli.slurm(*words, "--output=/dev/null", str(script), name, str(folder)).strip()

    def strays(name: str) -> list[int]:
        return [one.proc.pid for one in checked.sandbox.node("node1").members() if is_stray(one.proc.pid, jobs[name])]

    def left(name: str) -> list[bool]:
        """Whether the job's process, its file in the node's /dev/shm and its file in tmp are there."""
        inside = checked.sandbox.node("node1").members()[0].proc.pid
        shm = Path(f"/proc/{inside}/root/dev/shm/job-{name}")
        return [bool(strays(name)), shm.exists(), (folder / "tmp" / f"job-{name}").exists()]

    wait_until(lambda: all(all(left(name)) for name in jobs), "both run")
    (folder / "end-one").touch()
    wait_until(lambda: checked.job(jobs["one"], "JobState") == "COMPLETED", "the first has ended")
    assert not strays("one"), "its process went with it"
    assert left("two") == [True, True, True]
    assert checked.job(jobs["two"], "JobState") == "RUNNING"
    (folder / "end-two").touch()
    wait_until(lambda: checked.job(jobs["two"], "JobState") == "COMPLETED", "the second has ended")
    assert (left("one"), left("two")) == ([False] * 3, [False] * 3), [
        one["usage"]["left"] for one in checked.spool("node1") if one["usage"]
    ]
    assert checked.drained() == {}


def is_stray(pid: int, job_id: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return (
            Path(f"/proc/{pid}/cmdline").read_text() == "sleep\x001000\0" and f"SLURM_JOB_ID={job_id}".encode() in words
        )
    except OSError:
        return False
