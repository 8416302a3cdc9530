"""What a sandbox may be asked, and the files that come of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fleetctl.errors import UsageError
from fleetctl.sandbox import conf
from fleetctl.sandbox.model import Partition, SandboxConfig, checked, parse_partition, parse_setting

CONFIG = SandboxConfig(nodes=2, gpus=4, cpu_nodes=1)
SITE = conf.Site(
    directory="/tmp/s",
    cluster="sandbox20000",
    host="here",
    user="ada",
    slurm_version=(22, 5),
    ctld_port=20000,
    dbd_port=20001,
    node_ports={"node1": 20002, "node2": 20003, "cpu1": 20004},
)


def lines(config: SandboxConfig, key: str) -> list[str]:
    text = conf.slurm_conf(config, SITE)
    return [line for line in text.splitlines() if line.lower().startswith(f"{key.lower()}=")]


def test_gpu_nodes_have_gpus_and_cpu_nodes_have_none() -> None:
    by_name = {line.split()[0].partition("=")[2]: line for line in lines(CONFIG, "NodeName")}
    assert set(by_name) == {"node1", "node2", "cpu1"}
    assert "Gres=gpu:4" in by_name["node1"]
    assert "Port=20003" in by_name["node2"]
    assert "Gres" not in by_name["cpu1"]
    assert conf.gres_conf(CONFIG, SITE) == "NodeName=node[1-2] Name=gpu File=/tmp/s/dev/gpu[0-3]\n"


@pytest.mark.parametrize("config", [replace(CONFIG, gpus=0), replace(CONFIG, nodes=0)])
def test_without_gpus_no_gres_is_promised(config: SandboxConfig) -> None:
    assert conf.gres_conf(config, SITE) == ""
    assert "Gres=" not in conf.slurm_conf(config, SITE)


def test_set_replaces_our_line_whatever_its_case_and_adds_new_ones() -> None:
    config = replace(CONFIG, settings=(("slurmdtimeout", "7"), ("JobRequeue", "0"), ("JobRequeue", "1")))
    assert lines(config, "SlurmdTimeout") == ["slurmdtimeout=7"]
    assert lines(config, "JobRequeue") == ["JobRequeue=1"]  # the last one counts


def test_set_authinfo_keeps_the_socket_of_our_munged() -> None:
    config = replace(CONFIG, settings=(("AuthInfo", "cred_expire=60"),))
    assert lines(config, "AuthInfo") == ["AuthInfo=socket=/tmp/s/run/munge.sock,cred_expire=60"]


def test_no_key_is_written_twice() -> None:
    text = conf.slurm_conf(replace(CONFIG, accounting=True), SITE)
    keys = [line.partition("=")[0] for line in text.splitlines() if re.match(r"\w+=", line)]
    keys = [key for key in keys if key not in ("NodeName", "PartitionName")]
    assert sorted(set(keys)) == sorted(keys)


def test_main_is_the_default_partition_until_another_claims_that() -> None:
    assert lines(CONFIG, "PartitionName") == ["PartitionName=main Nodes=ALL State=UP MaxTime=INFINITE Default=YES"]
    debug = Partition("debug", (("Nodes", "node1"), ("default", "YES"), ("MaxTime", "10")))
    assert lines(replace(CONFIG, partitions=(debug,)), "PartitionName") == [
        "PartitionName=main Nodes=ALL State=UP MaxTime=INFINITE",
        "PartitionName=debug Nodes=node1 State=UP MaxTime=10 default=YES",
    ]


def test_a_partition_called_main_changes_ours() -> None:
    config = replace(CONFIG, partitions=(Partition("main", (("MaxTime", "5"),)),))
    assert lines(config, "PartitionName") == ["PartitionName=main Nodes=ALL State=UP MaxTime=5 Default=YES"]


def test_cgroups_are_disabled_only_where_slurm_knows_the_word() -> None:
    assert conf.cgroup_conf(SITE) == ""
    assert conf.cgroup_conf(replace(SITE, slurm_version=(24, 5))) == ""
    assert conf.cgroup_conf(replace(SITE, slurm_version=(24, 11))) == "CgroupPlugin=disabled\n"
    assert conf.cgroup_conf(replace(SITE, slurm_version=(26, 5))) == "CgroupPlugin=disabled\n"


def test_accounting_reaches_slurmdbd_with_our_munged() -> None:
    assert lines(replace(CONFIG, accounting=True), "AccountingStoragePass") == [
        "AccountingStoragePass=/tmp/s/run/munge.sock"
    ]
    assert lines(CONFIG, "AccountingStorageType") == ["AccountingStorageType=accounting_storage/none"]
    assert "StorageUser=ada\n" in conf.slurmdbd_conf(SITE)


def test_nodes_know_each_other_by_name() -> None:
    assert conf.hosts_file("127.0.0.1 localhost", ("node1", "node2")) == "127.0.0.1 localhost\n127.0.0.1 node1 node2\n"


def test_a_comma_inside_a_partition_value_stays() -> None:
    assert parse_partition("debug:Nodes=node[1,3],AllowAccounts=a,b,MaxTime=10") == Partition(
        "debug", (("Nodes", "node[1,3]"), ("AllowAccounts", "a,b"), ("MaxTime", "10"))
    )
    assert parse_partition("all") == Partition("all")


def test_a_setting_may_hold_an_equals_sign() -> None:
    assert parse_setting("AuthInfo=cred_expire=5") == ("AuthInfo", "cred_expire=5")


@pytest.mark.parametrize(
    "text",
    [
        "SlurmdTimeout",
        "=5",
        "Slurmd Timeout=5",
        "NodeName=x",
        "partitionname=x",
        "Include=/etc/x",
        "Epilog=a\nb",
        "A=#x",
    ],
)
def test_a_setting_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        parse_setting(text)


@pytest.mark.parametrize(
    "text",
    ["", ":MaxTime=1", "two words:MaxTime=1", "a:MaxTime", "a:PartitionName=b", "a:MaxTime=1 Nodes=x", "a:Nodes="],
)
def test_a_partition_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--partition"):
        parse_partition(text)


@pytest.mark.parametrize(
    "config",
    [
        SandboxConfig(nodes=0),
        SandboxConfig(nodes=-1),
        SandboxConfig(nodes=65),
        SandboxConfig(gpus=17),
        SandboxConfig(cpu_nodes=65),
        SandboxConfig(settings=(("NodeName", "x"),)),
        SandboxConfig(partitions=(Partition("a b"),)),
    ],
)
def test_a_config_that_cannot_be_is_refused(config: SandboxConfig) -> None:
    with pytest.raises(UsageError):
        checked(config)
