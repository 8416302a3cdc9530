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
Prolog=/opt/fleetctl/current/prolog/fleetctl-prolog.sh
Epilog=/opt/fleetctl/current/epilog/fleetctl-epilog.sh
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
HealthCheckProgram=/opt/fleetctl/current/prolog/fleetctl-periodic.sh
HealthCheckInterval=300
HealthCheckNodeState=ANY,CYCLE
TopologyPlugin=topology/tree
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment,job_env
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=login[1-2]
NodeName=DEFAULT Gres=gpu:8
NodeName=node[001-512] CPUs=192 RealMemory=2000000
NodeSet=some Nodes=node[001-004]
PartitionName=train Nodes=ALL Default=YES GraceTime=120 TRESBillingWeights="CPU=0.1,GRES/gpu=1.0"
PartitionName=test Nodes=some GraceTime=INFINITE TRESBillingWeights=GRES/gpu=2
PartitionName=cpu Nodes=login[1-2] PriorityTier=5
"""
GRES = "NodeName=node[001-512] Name=gpu File=/dev/nvidia[0-7]\n"
CGROUP = "ConstrainDevices=yes\n"

# check -> what is wrong, as (line that stands there, line instead)
WRONG = {
    "prolog": [("PrologFlags=Alloc,DeferBatch", "PrologFlags=DeferBatch"), ("PrologFlags=Alloc,DeferBatch", "")],
    "prolog_hold": [("bf_interval=30,nohold_on_prolog_fail", "bf_interval=30")],
    "prolog_timeout": [
        ("PrologEpilogTimeout=60", ""),
        ("PrologEpilogTimeout=60", "PrologTimeout=60"),
        ("PrologEpilogTimeout=60", "EpilogTimeout=60"),
        ("PrologEpilogTimeout=60", "PrologEpilogTimeout=INFINITE"),
        ("PrologEpilogTimeout=60", "PrologEpilogTimeout=5"),
        ("PrologEpilogTimeout=60", "EpilogTimeout=60\nPrologTimeout=3"),
        ("PrologEpilogTimeout=60", "PrologEpilogTimeout=60\nBatchStartTimeout=5"),
    ],
    "kill_wait": [("KillWait=60", ""), ("KillWait=60", "KillWait=10")],
    "grace_time": [
        ("GraceTime=120 ", ""),
        ("GraceTime=120", "GraceTime=20"),
        ("GraceTime=120 ", "PreemptMode=GANG,CANCEL "),
        ("GraceTime=INFINITE", "PriorityTier=4"),
    ],
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
        ("select/cons_tres", "cons_res"),
        ("SelectType=select/cons_tres", ""),
    ],
    "accounting": [("AccountingStorageType=accounting_storage/slurmdbd", "")],
    "gpu_tres": [("AccountingStorageTRES=gres/gpu", ""), ("gres/gpu\n", "gres/gpumem\n")],
    "job_comment": [("AccountingStoreFlags=job_comment,job_env", "AccountingStoreFlags=job_env")],
    "billing": [
        (' TRESBillingWeights="CPU=0.1,GRES/gpu=1.0"', ""),
        ("CPU=0.1,GRES/gpu=1.0", "CPU=1.0"),
        ("=GRES/gpu=2", "=Node=1"),
    ],
    "health_check": [
        ("ANY,CYCLE", "ANY"),
        ("HealthCheckNodeState=ANY,CYCLE", ""),
        ("ANY,CYCLE", "START_ONLY"),
        ("ANY,CYCLE", "CYCLE,REBOOT_ONLY"),
        ("HealthCheckInterval=300", ""),
        ("HealthCheckProgram=/opt/fleetctl/current/prolog/fleetctl-periodic.sh", ""),
        (
            "HealthCheckProgram=/opt/fleetctl/current/prolog/fleetctl-periodic.sh\nHealthCheckInterval=300",
            "TreeWidth=9",
        ),
    ],
    "topology": [("TopologyPlugin=topology/tree", "")],
    "min_job_age": [("KillWait=60", "KillWait=60\nMinJobAge=60")],
    "unkillable": [("UnkillableStepTimeout=180", "MessageTimeout=60")],
    "containment": [
        ("ProctrackType=proctrack/cgroup", "ProctrackType=proctrack/linuxproc"),
        ("task/cgroup,task/affinity", "task/affinity"),
        ("task/cgroup,task/affinity", "task/none"),
        ("task/cgroup,task/affinity", "none"),
    ],
}
CASES = [pytest.param(check, *case, id=f"{check}-{case[1]!r}") for check, cases in WRONG.items() for case in cases]
SAVE_S = 45.0


def cluster(text: str, *, gres: str | None = GRES, cgroup: str | None = CGROUP) -> Cluster:
    def conf(text: str) -> Conf:
        return read_conf(Path("slurm.conf"), lambda path: text)

    return Cluster(conf(text), (gres and conf(gres)) or None, (cgroup and conf(cgroup)) or None, SAVE_S)


def pasted(text: str, told: str) -> str:
    """The text with a line that was told; what is twice in a row counts as it was last said."""
    key, _, more = told.partition(" ... ")
    if not more:
        return f"{text}\n{told}"
    return "\n".join(f"{line} {more}" if f"{line} ".startswith(f"{key} ") else line for line in text.splitlines())


def only(text: str, check: str) -> list[Advice]:
    return [advice for advice in examine(cluster(text)) if advice.check == check]


def bad(found: tuple[Advice, ...]) -> list[Advice]:
    return [advice for advice in found if advice.level is not Level.FINE]


def test_nothing_hurts_on_a_good_cluster() -> None:
    found = examine(cluster(GOOD))
    assert not bad(found)
    assert {advice.check for advice in found} == {*WRONG} - {"accounting"}


def test_every_check_has_a_case_that_is_wrong() -> None:
    assert {*CHECKS} <= {*WRONG, "include"}  # Slurm itself does not start on such an Include


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
        assert advice.lines
        for line in advice.lines:
            text = pasted(text, line)
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


def test_the_qos_says_how_long_a_preempted_run_has() -> None:
    for text in (GOOD, GOOD.replace("GraceTime=120 ", "")):
        told = only(text.replace("preempt/partition_prio", "preempt/qos"), "grace_time")
        assert [(one.level, "sacctmgr show qos" in one.why) for one in told] == [(Level.UNKNOWN, True)]


def test_who_may_not_be_preempted_needs_no_grace() -> None:
    assert "cpu" not in str(only(GOOD, "grace_time"))  # the highest tier
    assert not only(GOOD.replace("PriorityTier=5", "PriorityTier=1"), "grace_time")
    assert not only(GOOD.replace("preempt/partition_prio", "preempt/none"), "grace_time")
    off = GOOD.replace("GraceTime=120 ", "PreemptMode=OFF ")
    assert [one.level for one in only(off, "grace_time")] == [Level.FINE]


def test_what_is_wrong_with_many_partitions_is_said_once() -> None:
    text = GOOD.replace("GraceTime=120 ", "").replace("GraceTime=INFINITE ", "").replace("GRES/gpu", "Node")
    grace, bill = only(text, "grace_time"), only(text, "billing")
    assert [one.found for one in grace] == ["partitions train, test: GraceTime=0"]
    assert grace[0].lines == ("PartitionName=train ... GraceTime=120", "PartitionName=test ... GraceTime=120")
    assert [one.found for one in bill] == ["partitions train, test: GPUs have no weight"]
    assert len(bill[0].lines) == 2


def test_partitions_without_gpus_need_no_weight_for_them() -> None:
    assert "cpu" not in str(only(GOOD, "billing"))
    assert not only(GOOD.replace("Gres=gpu:8", "Gres=none"), "billing")


def test_a_weight_is_told_only_where_slurmctld_starts_with_it() -> None:
    text = GOOD.replace("GRES/gpu=1.0", "Node=1")
    assert not only(text.replace("accounting_storage/slurmdbd", "accounting_storage/none"), "billing")
    (told,) = [one for one in only(text.replace("TRES=gres/gpu\n", "TRES=fs/disk\n"), "billing") if one.lines]
    assert told.lines[0] == "AccountingStorageTRES=fs/disk,gres/gpu"


@pytest.mark.parametrize(
    "nodeset", ["NodeSet=mine Nodes=node[7-8]", "NodeSet=mine Feature=fast", "NodeSet=mine Nodes=login1 Feature=fast"]
)
@pytest.mark.parametrize(("gres", "level"), [("gpu:h100:8", Level.MAY_HURT), ("GPU", Level.MAY_HURT), ("mps:9", None)])
def test_the_nodes_of_a_node_set_are_found(nodeset: str, gres: str, level: Level | None) -> None:
    head = "AccountingStorageType=accounting_storage/slurmdbd\nNodeName=login1\n"
    text = f"{head}NodeName=node[7-8] Feature=slow,fast Gres={gres}\n{nodeset}\nPartitionName=p Nodes=mine\n"
    assert [one.level for one in only(text, "billing")] == ([level] if level else [])


def test_nodes_that_will_register_are_not_known() -> None:
    nodes = "NodeName=login[1-2]\nNodeName=DEFAULT Gres=gpu:8\nNodeName=node[001-512] CPUs=192 RealMemory=2000000\n"
    bare = GOOD.replace("TopologyPlugin=topology/tree\n", "").replace("GRES/gpu", "Node")
    for text in (bare.replace(nodes, "MaxNodeCount=600\n"), bare.replace(nodes, "MaxNodeCount=600\nNodeName=login1\n")):
        found = bad(examine(cluster(text)))
        assert {advice.check: advice.level for advice in found} == dict.fromkeys(
            ("gpus", "billing", "topology"), Level.UNKNOWN
        )
    few = bare.replace(nodes, "MaxNodeCount=20\n")
    assert {advice.check for advice in bad(examine(cluster(few)))} == {"gpus", "billing"}


def test_topology_may_stand_in_a_file_of_its_own() -> None:
    text = GOOD.replace("TopologyPlugin=topology/tree\n", "")
    assert bad(examine(cluster(text)))
    with_file = Cluster(cluster(text).slurm, cluster(text).gres, cluster(text).cgroup, SAVE_S, has_topology_yaml=True)
    assert not bad(examine(with_file))


@pytest.mark.parametrize("value", ["cgroup,affinity", "affinity,cgroup", "TASK/CGROUP"])
def test_a_plugin_counts_with_or_without_its_kind(value: str) -> None:
    text = GOOD.replace("task/cgroup,task/affinity", value)
    for kind in ("proctrack/", "select/", "preempt/", "topology/", "accounting_storage/"):
        text = text.replace(kind, "")
    assert not bad(examine(cluster(text)))


def test_what_differs_between_versions_is_not_known() -> None:
    (default,) = [one for one in only(GOOD.replace("SelectType=select/cons_tres", ""), "gpus") if one.lines]
    (alone,) = only(GOOD.replace("Alloc,DeferBatch", "DeferBatch"), "prolog")
    assert (default.level, default.lines) == (Level.UNKNOWN, ("SelectType=select/cons_tres",))
    assert (alone.level, alone.lines) == (Level.UNKNOWN, ("PrologFlags=DeferBatch,Alloc",))


@pytest.mark.parametrize("script", ["Prolog", "Epilog"])
def test_each_script_has_a_limit_of_its_own(script: str) -> None:
    other = "Epilog" if script == "Prolog" else "Prolog"
    text = GOOD.replace("PrologEpilogTimeout=60", f"{other}Timeout=60")
    assert [one.lines for one in only(text, "prolog_timeout") if one.lines] == [(f"{script}Timeout=60",)]
    without = text.replace(f"\n{script}=", "\n#")
    assert [one.level for one in only(without, "prolog_timeout")] == [Level.FINE]


def test_a_plugin_that_does_nothing_is_left_out_of_the_line() -> None:
    (told,) = only(GOOD.replace("task/cgroup,task/affinity", "task/none"), "containment")
    assert told.lines == ("TaskPlugin=task/cgroup",)


def test_a_check_at_the_start_is_not_one_at_the_same_moment() -> None:
    (told,) = only(GOOD.replace("ANY,CYCLE", "START_ONLY"), "health_check")
    assert (told.level, told.lines) == (Level.MAY_HURT, ("HealthCheckNodeState=ANY,CYCLE",))


def test_all_lines_that_a_check_needs_are_told() -> None:
    without = "\n".join(line for line in GOOD.splitlines() if not line.startswith("HealthCheck"))
    (told,) = only(without, "health_check")
    assert [line.partition("=")[0] for line in told.lines] == [
        "HealthCheckProgram",
        "HealthCheckInterval",
        "HealthCheckNodeState",
    ]


def test_what_an_unknown_file_may_say_does_not_hurt() -> None:
    text = "Include %c.conf\n" + GOOD.replace("Prolog=", "#").replace("KillWait=60", "")
    found = examine(cluster(text))
    assert {advice.level for advice in found} == {Level.FINE, Level.UNKNOWN}
    assert {advice.check for advice in bad(found)} == {"include", "prolog", "kill_wait"}
    assert "Include %c.conf (slurm.conf:1)" in [advice.found for advice in found]
    assert [one.check for one in bad(examine(cluster(GOOD, gres="Include %c.conf\n")))] == ["include", "gpus"]


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


@pytest.mark.parametrize(("is_terminal", "columns"), [(False, 40), (True, 40), (True, 70), (True, 300)])
def test_lines_wrap_on_a_terminal_and_stay_whole_in_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: is_terminal)
    names = "".join(f"PartitionName=part{n} Nodes=ALL\n" for n in range(20))
    (tmp_path / "slurm.conf").write_text(GOOD.replace("ANY,CYCLE", "ANY") + names)
    words = ["--runs", str(tmp_path / "runs"), "doctor", "--conf", str(tmp_path / "slurm.conf")]
    lines = CliRunner().invoke(cli, words, standalone_mode=False).stdout.splitlines()
    prose = [line for line in lines if "> " not in line]
    assert (max(map(len, prose)) <= min(columns, 100)) == is_terminal
    assert all(line[:11].isspace() or line[:11].strip() in ("hurts", "may hurt", "not known") for line in lines)
    for line in ("HealthCheckNodeState=ANY,CYCLE", 'PartitionName=part9 ... TRESBillingWeights="GRES/gpu=1.0"'):
        assert f"{' ' * 11}> {line}" in lines


def test_a_topology_file_beside_is_seen(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(GOOD.replace("TopologyPlugin=topology/tree", ""))
    words = ["--runs", str(tmp_path / "runs"), "doctor", "--conf", str(tmp_path / "slurm.conf")]
    assert "no topology" in CliRunner().invoke(cli, words, standalone_mode=False).output
    (tmp_path / "topology.yaml").touch()
    assert "no topology" not in CliRunner().invoke(cli, words, standalone_mode=False).output


def test_a_hostile_word_of_the_file_does_not_move_the_cursor(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text(GOOD.replace("select/cons_tres", "select/\x07x"))
    words = ["--runs", str(tmp_path / "runs"), "doctor", "--conf", str(tmp_path / "slurm.conf")]
    assert "\x07" not in CliRunner().invoke(cli, words, standalone_mode=False).output
