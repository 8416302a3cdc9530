"""`fleetctl doctor` and slurmctld: both read slurm.conf alike, and slurmctld starts with the lines that are told."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from fleetctl import process
from fleetctl.errors import SandboxError
from fleetctl.ops.advice import Advice, Cluster, Level
from fleetctl.ops.doctor import examine
from fleetctl.ops.slurm_conf import read_conf
from fleetctl.sandbox import conf
from fleetctl.sandbox.cluster import Sandbox
from fleetctl.sandbox.conf import Site
from fleetctl.sandbox.model import Partition, SandboxConfig
from tests.integration.conftest import MakeSandbox

pytestmark = pytest.mark.slurm
Write = Callable[[Callable[[str, Site], str]], None]
SAVE_S = 45.0

BY_HAND = r"""
killwait = 45    # "no" = yes
MINJOBAGE=1\
2\
3
MailDomain="a b"
JobCompLoc=a\#b\\c
ResumeTimeout = "77"   # in quotes
SuspendTimeout	-=	33
TaskProlog='/x'
SchedulerParameters+=bf_interval=3,\ # here the line ends:
# continued by nothing
PrologFlags=Alloc,\
DeferBatch
  JobFileAppend=1
#JobRequeue=0
TaskEpilog=a"b"
Include sub/more.conf
INCLUDE	%c.conf   # by the cluster's name
NodeSet=some Nodes=node[1-2]
PartitionName=DEFAULT GraceTime=33
PartitionName=one Nodes=some \
   PriorityTier="5" # the line goes on above, and ends here
partitionname=two nodes=node2 gracetime=44
PartitionName=DEFAULT MaxNodes=2 GraceTime=55
PartitionName=three Nodes=ALL
UnkillableStepTimeout=66\
"""
INCLUDED = {
    "sub/more.conf": "MessageTimeout=7\nInclude next.conf\n",
    "sub/next.conf": "HealthCheckInterval=88\nHealthCheckNodeState=cycle,any\nHealthCheckProgram=/bin/true\n",
    "next.conf": "HealthCheckInterval=99\n",
}
# What makes a sandbox hurt; some lines of its own do, too.
BAD = """\
Prolog=/bin/true
Epilog=/bin/true
PrologFlags=NoHold
PrologEpilogTimeout=5
BatchStartTimeout=4
KillWait=5
SlurmdTimeout=0
MinJobAge=9
JobRequeue=0
ReturnToService=0
UnkillableStepTimeout=6
AccountingStorageTRES=fs/lustre
AccountingStoreFlags=job_env
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""
NOT_IN_A_SANDBOX = {"containment"}  # it has no cgroups


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch) -> Write:
    """`write(change)`: the next sandbox has the slurm.conf that `change` makes of its own."""
    own = conf.slurm_conf

    def set_change(change: Callable[[str, Site], str]) -> None:
        monkeypatch.setattr(conf, "slurm_conf", lambda config, site: change(own(config, site), site))

    return set_change


def scontrol(sandbox: Sandbox, *words: str) -> str:
    done = process.run(["scontrol", *words], timeout_s=30, env=sandbox.environment(os.environ))
    assert done.returncode == 0, done
    return done.stdout


def shown(sandbox: Sandbox) -> dict[str, str]:
    """`scontrol show config`, by the lower case key."""
    found = re.findall(r"^(\w+)(?:\[0\])?\s*= (.*?)\s*$", scontrol(sandbox, "show", "config"), re.M)
    return {key.lower(): value for key, value in found}


def partition(sandbox: Sandbox, name: str) -> dict[str, str]:
    words = scontrol(sandbox, "-o", "show", "partition", name).split()
    return {key.lower(): value for key, _, value in (word.partition("=") for word in words)}


def same(ours: str, theirs: str) -> bool:
    """Slurm shows seconds with their unit, users with their number, and the words of a list in its own order."""
    plain = re.sub(r"( sec|\(\d+\))$", "", theirs)
    words, shown_words = ours.lower().split(","), plain.lower().split(",")
    return plain == ours or set(words) - {""} <= set(shown_words)


def told_lines(found: Iterable[Advice]) -> list[str]:
    return [line for advice in found for line in advice.lines]


def test_each_setting_is_read_as_slurmctld_reads_it(make_sandbox: MakeSandbox, write: Write) -> None:
    def change(text: str, site: Site) -> str:
        etc = Path(site.path("etc"))
        (etc / "sub").mkdir()
        for name, included in {**INCLUDED, f"{site.cluster.lower()}.conf": "TreeWidth=12\n"}.items():
            (etc / name).write_text(included)
        return text.replace("ClusterName=s", "ClusterName=S") + BY_HAND.rstrip(
            "\n"
        )  # its last line goes on into nothing

    write(change)
    sandbox = make_sandbox(SandboxConfig(nodes=2, gpus=1))
    ours, theirs = read_conf(sandbox.slurm_conf), shown(sandbox)
    assert {*ours.settings} > {"killwait", "maildomain", "treewidth", "messagetimeout", "unkillablesteptimeout"}
    assert not ours.unread
    wrong = {
        key: (setting.value, theirs.get(key))
        for key, setting in ours.settings.items()
        if not same(setting.value, theirs.get(key, ""))
    }
    assert not wrong
    rows = {row["partitionname"]: row for row in ours.named("partitionname")}
    assert {*rows} == {"main", "one", "two", "three"}
    for name, row in rows.items():
        real = partition(sandbox, name)
        assert real["gracetime"] == row.get("gracetime", "0"), name
        assert real["prioritytier"] == row.get("prioritytier", "1"), name
        assert real["maxnodes"] == row.get("maxnodes", "UNLIMITED"), name
    for row in ours.named("nodename"):
        assert f"Gres={row['gres']}\n" in scontrol(sandbox, "show", "node", row["nodename"])


def test_slurmctld_starts_with_the_lines_that_are_told(make_sandbox: MakeSandbox, write: Write) -> None:
    found: list[Advice] = []

    def look(path: Path) -> list[Advice]:
        here = Cluster(read_conf(path), gres=read_conf(path.with_name("gres.conf")), slowest_save_s=SAVE_S)
        return [one for one in examine(here) if one.level is not Level.FINE and one.check not in NOT_IN_A_SANDBOX]

    def change(text: str, site: Site) -> str:
        bad = Path(site.path("etc", "bad.conf"))
        bad.write_text(text.replace("SelectType=", "#") + BAD)
        bad.with_name("gres.conf").write_text("NodeName=node1 Name=gpu\n")
        found.extend(look(bad))
        lines = bad.read_text()
        for told in told_lines(found):
            key, _, more = told.partition(" ... ")
            if more:
                lines = "".join(
                    f"{line} {more}\n" if line.startswith(f"{key} ") else f"{line}\n" for line in lines.splitlines()
                )
            else:
                lines += f"{told}\n"
        return lines

    write(change)
    partitions = tuple(Partition(name, (("PriorityTier", tier),)) for name, tier in (("low", "2"), ("high", "3")))
    sandbox = make_sandbox(SandboxConfig(nodes=1, gpus=1, accounting=True, partitions=partitions))
    assert {advice.check for advice in found} == {
        *("prolog", "prolog_hold", "prolog_timeout", "kill_wait", "grace_time", "slurmd_timeout", "requeue", "output"),
        *("return_to_service", "gpus", "gpu_tres", "job_comment", "billing", "health_check", "min_job_age"),
        "unkillable",
    }
    theirs = shown(sandbox)
    for told in told_lines(found):
        key, _, value = told.partition("=")
        if " ... " in told:
            name, _, more = value.partition(" ... ")
            key, _, value = more.partition("=")
            assert partition(sandbox, name)[key.lower()] == value.strip('"'), told
        else:
            assert same(value, theirs[key.lower()]), told
    assert not look(sandbox.slurm_conf)


def test_slurmctld_without_a_select_type_is_as_it_is_told(make_sandbox: MakeSandbox, write: Write) -> None:
    def change(text: str, site: Site) -> str:
        return re.sub("^(SelectType|SelectTypeParameters|GresTypes)=", "#", text, flags=re.M)

    write(change)
    sandbox = make_sandbox(SandboxConfig(nodes=0, cpu_nodes=1))
    theirs = shown(sandbox)
    expected = "select/linear" if theirs["slurm_version"].startswith("22.05") else "select/cons_tres"
    assert theirs["selecttype"] == expected
    assert read_conf(sandbox.slurm_conf).get("SelectType") == ""


@pytest.mark.parametrize("weight", ['TRESBillingWeights="GRES/gpu=1"', "State=UP\nAccountingStorageTRES=gres/gpu"])
def test_slurmctld_refuses_weights_for_gpus_without_slurmdbd(
    make_sandbox: MakeSandbox, write: Write, weight: str
) -> None:
    """So no such line is told there."""
    write(lambda text, site: f"{text}PartitionName=more Nodes=ALL {weight}\n")
    with pytest.raises(SandboxError, match=r"slurmdbd is required|TRES weight"):
        make_sandbox(SandboxConfig(nodes=1, gpus=1))
