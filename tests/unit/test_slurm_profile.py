"""The cluster profile: read out of a configuration, kept in a file, thrown away when stale."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from fleetctl.slurm import profile
from fleetctl.slurm.model import AdminLevel, Node, Partition
from fleetctl.slurm.parse import parse_config

RECORDED = Path(__file__).parents[1] / "recorded" / "25.11"
NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
CONFIG = parse_config((RECORDED / "scontrol_show_config.txt").read_text())
NODE = Node(
    name="gpu01",
    base_state="MIXED",
    flags=frozenset(),
    reason="",
    reason_user="",
    reason_time=None,
    gpus=8,
    gpus_used=0,
    gres="gpu:h100:8(S:0-1),gpu:a100:1",
    cpus=16,
    memory_mib=2000,
    partitions=("dgx",),
)
PARTITION = Partition("dgx", is_default=True, state="UP", max_time_s=None, default_time_s=3600, node_count=4)


def taken(
    settings: Mapping[str, str] = CONFIG, uid: int = 1000, admin_level: AdminLevel | None = None
) -> profile.ClusterProfile:
    config = {**CONFIG, **settings}
    return profile.profile_from(config, [PARTITION], [NODE], taken_at=NOW, uid=uid, admin_level=admin_level)


def test_the_recorded_configuration_of_25_11() -> None:
    found = taken()
    assert (found.slurm_version, found.cluster_name) == ("25.11.8-0pre1", "fleet25")
    assert (found.max_array_size, found.message_timeout_s, found.kill_wait_s, found.min_job_age_s) == (1001, 10, 5, 30)
    assert (found.requeue_delay_s, found.job_requeue_default) == (120, True)
    assert (found.gpu_style, found.gpu_types) == ("gpus_per_node", ("a100", "h100"))
    assert (found.memory_style, found.max_script_size_bytes) == ("per_node", 4_194_304)
    assert (found.accounting, found.comments, found.comments_in_accounting) == (True, "unproven", True)
    assert found.rights == "user"
    assert found.partitions[0].name == "dgx"
    assert found.partitions[0].default_time_s == 3600


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({"AuthInfo": "socket=/x,cred_expire=5"}, "requeue_delay_s", 5),
        ({"SchedulerParameters": "requeue_delay=7,defer"}, "requeue_delay_s", 7),
        ({"SchedulerParameters": "max_script_size=100"}, "max_script_size_bytes", 100),
        ({"JobRequeue": "0"}, "job_requeue_default", False),
        ({"SelectType": "select/linear"}, "gpu_style", "gres"),
        ({"GresTypes": ""}, "gpu_style", "none"),
        ({"GresTypes": "nvme, gpu"}, "gpu_style", "gpus_per_node"),
        ({"SelectTypeParameters": "CR_CORE"}, "memory_style", "none"),
        ({"MaxMemPerCPU": "4000"}, "memory_style", "per_cpu"),
        ({"MaxMemPerCPU": "UNLIMITED"}, "memory_style", "per_node"),
        ({"AccountingStorageType": ""}, "accounting", False),
        ({"AccountingStorageType": "accounting_storage/none"}, "comments_in_accounting", False),
        ({"AccountingStoreFlags": "job_env"}, "comments_in_accounting", False),
        ({"MaxArraySize": "0"}, "max_array_size", 0),
        ({"SlurmUser": "slurm(1000)"}, "rights", "administrator"),
    ],
)
def test_a_setting_is_read(settings: dict[str, str], field: str, value: object) -> None:
    assert getattr(taken(settings), field) == value


@pytest.mark.parametrize(
    ("uid", "level", "rights"),
    [
        (0, None, "administrator"),
        (1000, AdminLevel.ADMINISTRATOR, "administrator"),
        (1000, AdminLevel.OPERATOR, "operator"),
        (1000, AdminLevel.NONE, "user"),
        (1000, None, "user"),
    ],
)
def test_the_callers_rights(uid: int, level: AdminLevel | None, rights: str) -> None:
    assert taken({"SlurmUser": "slurm(64030)"}, uid, level).rights == rights


def test_a_profile_survives_the_file(tmp_path: Path) -> None:
    path = profile.profile_path(tmp_path / "runs", {})
    profile.save_profile(path, taken())
    profile.save_profile(path, taken())
    assert profile.load_profile(path, {}, NOW) == taken()
    assert [each.name for each in path.parent.iterdir()] == ["default.json"]


def test_each_slurm_conf_has_its_own_file(tmp_path: Path) -> None:
    paths = {profile.profile_path(tmp_path, env) for env in ({}, {"SLURM_CONF": "/a"}, {"SLURM_CONF": "/b"})}
    assert len(paths) == 3
    assert {path.parent for path in paths} == {tmp_path / ".cluster"}
    assert profile.profile_path(tmp_path, {"SLURM_CONF": ""}).name == "default.json"


@pytest.mark.parametrize(
    ("age", "usable"),
    [(timedelta(0), True), (timedelta(days=7), True), (timedelta(days=7, seconds=1), False), (timedelta(-1), False)],
)
def test_an_old_profile_is_none(tmp_path: Path, age: timedelta, usable: bool) -> None:
    path = tmp_path / "p.json"
    profile.save_profile(path, taken())
    assert (profile.load_profile(path, {}, NOW + age) is not None) is usable


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 1}', "\udcff"])
def test_a_torn_file_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert profile.load_profile(path, {}, NOW) is None
    assert profile.load_profile(tmp_path / "missing", {}, NOW) is None
    assert profile.load_profile(tmp_path, {}, NOW) is None


def test_another_schema_is_none(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(taken(), schema=profile.SCHEMA + 1)))
    assert profile.load_profile(path, {}, NOW) is None


def test_a_changed_slurm_conf_makes_a_profile_stale(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("")
    path = tmp_path / "p.json"
    profile.save_profile(path, taken())
    for seconds, usable in ((-1, True), (1, False)):
        os.utime(conf, (0, NOW.timestamp() + seconds))
        assert (profile.load_profile(path, {"SLURM_CONF": str(conf)}, NOW) is not None) is usable


def test_the_default_profile_is_slurms_own_defaults() -> None:
    assert profile.DEFAULT_PROFILE.requeue_delay_s == 120
    assert profile.DEFAULT_PROFILE.comments == "unproven"
