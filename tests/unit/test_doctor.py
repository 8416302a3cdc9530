"""`fleetctl doctor`: what hurts is named, and the line that it says cures it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fleetctl.cli.app import cli
from fleetctl.errors import CannotTell
from fleetctl.ops.advice import Advice, Cluster, Level
from fleetctl.ops.doctor import CHECKS, examine
from fleetctl.ops.slurm_conf import Conf, read_conf

# A cluster on which nothing is known to hurt.
GOOD = """\
ClusterName=one
SlurmctldHost=head
Prolog=/opt/fleetctl/current/fleetctl-prolog.sh
Epilog=/opt/fleetctl/current/fleetctl-epilog.sh
PrologFlags=Alloc,DeferBatch
PrologEpilogTimeout=60
SchedulerParameters=bf_interval=30,nohold_on_prolog_fail
KillWait=60
SlurmdTimeout=120
UnkillableStepTimeout=180
ReturnToService=1
JobFileAppend=1
GresTypes=gpu
SelectType=select/cons_tres
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
HealthCheckProgram=/opt/fleetctl/current/fleetctl-periodic.sh
HealthCheckInterval=300
HealthCheckNodeState=ANY,CYCLE
TopologyPlugin=topology/tree
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment,job_env
PreemptType=preempt/qos
PreemptMode=REQUEUE
NodeName=DEFAULT Gres=gpu:8
NodeName=node[001-512] CPUs=192 RealMemory=2000000
PartitionName=train Nodes=ALL Default=YES GraceTime=120 TRESBillingWeights="CPU=0.1,GRES/gpu=1.0"
"""
GRES = "NodeName=node[001-512] Name=gpu File=/dev/nvidia[0-7]\n"
CGROUP = "ConstrainDevices=yes\n"

# check -> what is wrong, as (line that stands there, line instead)
WRONG = {
    "prolog": [("PrologFlags=Alloc,DeferBatch", "PrologFlags=DeferBatch"), ("PrologFlags=Alloc,DeferBatch", "")],
    "prolog_hold": [("bf_interval=30,nohold_on_prolog_fail", "bf_interval=30")],
    "prolog_timeout": [
        ("PrologEpilogTimeout=60", ""),
        ("PrologEpilogTimeout=60", "PrologEpilogTimeout=5"),
        ("PrologEpilogTimeout=60", "PrologTimeout=3"),
        ("PrologEpilogTimeout=60", "PrologEpilogTimeout=60\nBatchStartTimeout=5"),
    ],
    "kill_wait": [("KillWait=60", ""), ("KillWait=60", "KillWait=10")],
    "grace_time": [("GraceTime=120 ", ""), ("GraceTime=120", "GraceTime=20")],
    "slurmd_timeout": [
        ("SlurmdTimeout=120", ""),
        ("SlurmdTimeout=120", "SlurmdTimeout=0"),
        ("SlurmdTimeout=120", "SlurmdTimeout=5"),
    ],
    "requeue": [("JobFileAppend=1", "JobFileAppend=1\nJobRequeue=0")],
    "output": [("JobFileAppend=1", "")],
    "return_to_service": [("ReturnToService=1", ""), ("ReturnToService=1", "ReturnToService=0")],
    "gpus": [
        ("GresTypes=gpu", ""),
        ("GresTypes=gpu", "GresTypes=mps"),
        ("select/cons_tres", "select/linear"),
    ],
    "accounting": [("AccountingStorageType=accounting_storage/slurmdbd", "")],
    "gpu_tres": [("AccountingStorageTRES=gres/gpu", ""), ("gres/gpu\n", "gres/gpumem\n")],
    "job_comment": [("AccountingStoreFlags=job_comment,job_env", "AccountingStoreFlags=job_env")],
    "billing": [(' TRESBillingWeights="CPU=0.1,GRES/gpu=1.0"', ""), ("CPU=0.1,GRES/gpu=1.0", "CPU=1.0")],
    "health_check": [("ANY,CYCLE", "ANY"), ("HealthCheckNodeState=ANY,CYCLE", "")],
    "topology": [("TopologyPlugin=topology/tree", "")],
    "min_job_age": [("KillWait=60", "KillWait=60\nMinJobAge=60")],
    "unkillable": [("UnkillableStepTimeout=180", "MessageTimeout=60")],
    "containment": [
        ("ProctrackType=proctrack/cgroup", "ProctrackType=proctrack/linuxproc"),
        ("task/cgroup,task/affinity", "task/affinity"),
        ("task/cgroup,task/affinity", "task/none"),
    ],
}
CASES = [pytest.param(check, *case, id=f"{check}-{case[1]!r}") for check, cases in WRONG.items() for case in cases]
SAVE_S = 45.0


def cluster(text: str, *, gres: str | None = GRES, cgroup: str | None = CGROUP) -> Cluster:
    def conf(text: str) -> Conf:
        return read_conf(Path("slurm.conf"), lambda path: text)

    return Cluster(conf(text), (gres and conf(gres)) or None, (cgroup and conf(cgroup)) or None, SAVE_S)


def bad(found: tuple[Advice, ...]) -> list[Advice]:
    return [advice for advice in found if advice.level is not Level.FINE]


def test_nothing_hurts_on_a_good_cluster() -> None:
    found = examine(cluster(GOOD))
    assert not bad(found)
    assert {advice.check for advice in found} == {*WRONG} - {"accounting"}


def test_every_check_has_a_case_that_is_wrong() -> None:
    assert {*CHECKS} <= {*WRONG}


@pytest.mark.parametrize(("check", "stands", "instead"), CASES)
def test_what_is_wrong_is_named_with_a_reason(check: str, stands: str, instead: str) -> None:
    assert GOOD.count(stands) == 1
    found = bad(examine(cluster(GOOD.replace(stands, instead))))
    assert {advice.check for advice in found} == {check}
    assert all(advice.why.endswith((".", "`.")) or "fleetctl node install" in advice.why for advice in found)


@pytest.mark.parametrize(("check", "stands", "instead"), CASES)
def test_the_line_that_is_told_cures_it(check: str, stands: str, instead: str) -> None:
    text = GOOD.replace(stands, instead)
    for advice in bad(examine(cluster(text))):
        assert advice.line
        key, _, more = advice.line.partition(" ... ")
        if more:  # a row: what is in it twice counts as it was last said
            text = "\n".join(f"{line} {more}" if line.startswith(key) else line for line in text.splitlines())
        else:
            text += "\n" + advice.line
    assert not bad(examine(cluster(text)))


@pytest.mark.parametrize(
    ("gres", "cgroup", "check"),
    [
        (None, CGROUP, "gpus"),
        ("NodeName=x Name=mps Count=100\n", CGROUP, "gpus"),
        ("AutoDetect=off\n", CGROUP, "gpus"),
        (GRES, None, "containment"),
        (GRES, "ConstrainDevices=no\n", "containment"),
    ],
)
def test_the_other_files_count(gres: str | None, cgroup: str | None, check: str) -> None:
    assert [advice.check for advice in bad(examine(cluster(GOOD, gres=gres, cgroup=cgroup)))] == [check]


@pytest.mark.parametrize(
    "gres", ["AutoDetect=nvml\n", "NodeName=node[001-512] AutoDetect=nvml\n", "name=GPU count=8\n"]
)
def test_gpus_are_found_however_they_are_written(gres: str) -> None:
    assert not bad(examine(cluster(GOOD, gres=gres)))


def test_what_no_run_has_measured_is_not_known() -> None:
    found = [one for one in examine(Cluster(cluster(GOOD).slurm)) if one.check == "kill_wait"]
    assert [one.level for one in found] == [Level.UNKNOWN]


def test_files_are_read_as_slurm_reads_them() -> None:
    files = {
        "slurm.conf": "killwait = 45 # no\nInclude more.conf\nTaskPlugin=a,\\\nb\nPartitionName=p \\\n  Nodes=ALL\n",
        "more.conf": 'KILLWAIT="90"\nPrologFlags+=Alloc\n#Prolog=/x\nComment=a\\#b\n',
    }
    conf = read_conf(Path("/etc/slurm/slurm.conf"), lambda path: files[path.name])
    assert (conf.get("KillWait"), conf.settings["killwait"].place) == ("90", "more.conf:1")
    assert conf.get("PrologFlags") == "Alloc"
    assert not conf.get("Prolog")
    assert conf.get("TaskPlugin") == "a,b"
    assert conf.named("partitionname") == ({"partitionname": "p", "nodes": "ALL"},)


def test_a_circle_of_files_ends() -> None:
    with pytest.raises(CannotTell, match="include each other"):
        read_conf(Path("slurm.conf"), lambda path: "Include slurm.conf\n")


def test_a_file_that_cannot_be_read_is_no_empty_file(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["doctor", "--conf", str(tmp_path / "slurm.conf")])
    assert isinstance(done.exception, CannotTell)


@pytest.mark.parametrize(("text", "code"), [(GOOD, 0), (GOOD.replace("ANY,CYCLE", "ANY"), 1)])
def test_the_command_says_it_by_its_exit_code(tmp_path: Path, text: str, code: int) -> None:
    for name, content in (("slurm.conf", text), ("gres.conf", GRES), ("cgroup.conf", CGROUP)):
        (tmp_path / name).write_text(content)
    words = ["--runs", str(tmp_path / "runs"), "doctor", "--conf", str(tmp_path / "slurm.conf")]
    told = json.loads(CliRunner().invoke(cli, [*words, "--json"], standalone_mode=False).stdout)
    assert told["hurts"] == bool(code)
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.return_value == code
    assert ("> HealthCheckNodeState=ANY,CYCLE" in done.output) == bool(code)
