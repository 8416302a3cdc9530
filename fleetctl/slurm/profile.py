"""The cluster profile: what this site's Slurm wants and can, as one small JSON file that is taken again when stale."""

from __future__ import annotations

import hashlib
import os
import pwd
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fleetctl.errors import CannotTell, SlurmRefused
from fleetctl.slurm.model import AdminLevel, GpuStyle, MemoryStyle, Node, Partition

if TYPE_CHECKING:
    from fleetctl.slurm.port import Slurm

SCHEMA = 1
MAX_AGE = timedelta(days=7)
_NUMBER = r"\s*([0-9]+)"
_USER = r"(.*)\(([0-9]+)\)"

# Defaults of slurm.conf.5 for a setting that the controller does not show.
_MAX_ARRAY_SIZE = 1001
_MAX_JOB_COUNT = 10_000
_MESSAGE_TIMEOUT_S = 10
_KILL_WAIT_S = 30
_MIN_JOB_AGE_S = 300
_CRED_EXPIRE_S = 120  # AuthInfo, cred_expire; a requeued job waits that long, so that old credentials die first
_MAX_SCRIPT_SIZE = 4 * 1024 * 1024  # SchedulerParameters, max_script_size


class Comments(StrEnum):
    """Whether a lookup finds the comment that a job was submitted with."""

    FOUND = "found"
    NOT_STORED = "not_stored"
    UNPROVEN = "unproven"


class Rights(StrEnum):
    """What the caller may do to other people's jobs and to nodes."""

    USER = "user"
    OPERATOR = "operator"
    ADMINISTRATOR = "administrator"


class PartitionProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A partition; a time of null is no limit, or no default."""

    name: str
    is_default: bool
    state: str
    max_time_s: int | None
    default_time_s: int | None
    nodes: int


class ClusterProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What one cluster wants and can, at `taken_at`."""

    schema: int = SCHEMA
    taken_at: datetime
    slurm_version: str
    cluster_name: str
    slurm_conf: str
    max_array_size: int = _MAX_ARRAY_SIZE
    max_job_count: int = _MAX_JOB_COUNT
    message_timeout_s: int = _MESSAGE_TIMEOUT_S
    kill_wait_s: int = _KILL_WAIT_S
    min_job_age_s: int = _MIN_JOB_AGE_S
    requeue_delay_s: int = _CRED_EXPIRE_S
    job_requeue_default: bool = True
    gpu_style: GpuStyle = GpuStyle.GPUS_PER_NODE
    gpu_types: tuple[str, ...] = ()
    memory_style: MemoryStyle = MemoryStyle.PER_NODE
    max_script_size_bytes: int = _MAX_SCRIPT_SIZE
    accounting: bool = False
    comments: Comments = Comments.UNPROVEN
    comments_in_accounting: bool = False
    rights: Rights = Rights.USER
    partitions: tuple[PartitionProfile, ...] = ()


# For `--dry-run` on a machine without Slurm: slurm.conf.5's own defaults.
DEFAULT_PROFILE = ClusterProfile(
    taken_at=datetime.fromtimestamp(0, UTC), slurm_version="", cluster_name="", slurm_conf=""
)


def profile_from(
    config: Mapping[str, str],
    partitions: Sequence[Partition],
    nodes: Sequence[Node],
    *,
    taken_at: datetime,
    uid: int,
    admin_level: AdminLevel | None = None,
    comments: Comments = Comments.UNPROVEN,
) -> ClusterProfile:
    """Read a profile out of the controller's answers. Pure."""
    scheduler = config.get("SchedulerParameters", "")
    accounting = config.get("AccountingStorageType", "").endswith("/slurmdbd")
    requeue_delay_s = _option(scheduler, "requeue_delay", _option(config.get("AuthInfo", ""), "cred_expire", None))
    return ClusterProfile(
        taken_at=taken_at,
        slurm_version=config["SLURM_VERSION"],
        cluster_name=config.get("ClusterName", ""),
        slurm_conf=config.get("SLURM_CONF", ""),
        max_array_size=_number(config, "MaxArraySize", _MAX_ARRAY_SIZE),
        max_job_count=_number(config, "MaxJobCount", _MAX_JOB_COUNT),
        message_timeout_s=_number(config, "MessageTimeout", _MESSAGE_TIMEOUT_S),
        kill_wait_s=_number(config, "KillWait", _KILL_WAIT_S),
        min_job_age_s=_number(config, "MinJobAge", _MIN_JOB_AGE_S),
        requeue_delay_s=_CRED_EXPIRE_S if requeue_delay_s is None else requeue_delay_s,
        job_requeue_default=config.get("JobRequeue", "1") != "0",
        gpu_style=_gpu_style(config),
        gpu_types=tuple(sorted({kind for node in nodes for kind in _gpu_types(node.gres)})),
        memory_style=_memory_style(config),
        max_script_size_bytes=_option(scheduler, "max_script_size", None) or _MAX_SCRIPT_SIZE,
        accounting=accounting,
        comments=comments,
        comments_in_accounting=accounting and "job_comment" in config.get("AccountingStoreFlags", ""),
        rights=_rights(config, uid, admin_level),
        partitions=tuple(
            PartitionProfile(
                name=partition.name,
                is_default=partition.is_default,
                state=partition.state,
                max_time_s=partition.max_time_s,
                default_time_s=partition.default_time_s,
                nodes=partition.node_count,
            )
            for partition in partitions
        ),
    )


def probe(slurm: Slurm, taken_at: datetime, path: Path, *, proved: Comments = Comments.UNPROVEN) -> ClusterProfile:
    """Ask the cluster what it is, for the user that we are. `proved` is what a test job told (slurm.prove); if it told
    nothing, what the profile at `path` says of this cluster holds on.

    :raises SlurmUnreachable: the controller does not answer.
    """
    config = slurm.config()
    uid = os.geteuid()
    try:
        admin_level: AdminLevel | None = slurm.admin_level(pwd.getpwuid(uid).pw_name)
    except (SlurmRefused, CannotTell, KeyError):
        admin_level = None  # no accounting, or it does not answer: rights come from SlurmUser alone
    partitions, nodes = slurm.partitions(), slurm.nodes()
    comments = proved if proved is not Comments.UNPROVEN else _saved_proof(path, config.get("ClusterName", ""))
    return profile_from(
        config, partitions, nodes, taken_at=taken_at, uid=uid, admin_level=admin_level, comments=comments
    )


def profile_path(runs_root: Path, environ: Mapping[str, str]) -> Path:
    """Where the profile of the cluster that `environ` points to lies; one file per SLURM_CONF."""
    conf = environ.get("SLURM_CONF")
    name = "default" if not conf else hashlib.sha256(os.fsencode(conf)).hexdigest()[:16]
    return runs_root / ".cluster" / f"{name}.json"


def load_profile(path: Path, environ: Mapping[str, str], now: datetime) -> ClusterProfile | None:
    """The saved profile; None when there is none, or it is of another schema, too old, or older than slurm.conf."""
    profile = _read(path)
    if profile is None or not timedelta(0) <= now - profile.taken_at <= MAX_AGE:
        return None
    try:
        changed_at = datetime.fromtimestamp(os.stat(environ.get("SLURM_CONF") or profile.slurm_conf).st_mtime, UTC)
    except OSError:
        return profile  # configless: there is no file to compare with
    return None if changed_at > profile.taken_at else profile


def _saved_proof(path: Path, cluster_name: str) -> Comments:
    """What a test job on this cluster once proved about comments: it outlives the rest of a stale profile."""
    profile = _read(path)
    return profile.comments if profile is not None and profile.cluster_name == cluster_name else Comments.UNPROVEN


def _read(path: Path) -> ClusterProfile | None:
    try:
        profile = msgspec.json.decode(path.read_bytes(), type=ClusterProfile)
    except (OSError, msgspec.MsgspecError, UnicodeError):
        return None
    return profile if profile.schema == SCHEMA else None


def save_profile(path: Path, profile: ClusterProfile) -> None:
    """Write the profile in one step: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(draft, "wb") as out:
        out.write(msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n")
        out.flush()
        os.fsync(out.fileno())
    os.replace(draft, path)


def _number(config: Mapping[str, str], key: str, default: int) -> int:
    """The number of `10 sec`; the default for what is not one (UNLIMITED, INFINITE)."""
    match = re.match(_NUMBER, config.get(key, ""))
    return int(match[1]) if match else default


def _option(options: str, name: str, default: int | None) -> int | None:
    """The number of `name=N` among comma-separated options."""
    for option in options.split(","):
        key, equals, value = option.strip().partition("=")
        if equals and key == name and (match := re.match(_NUMBER, value)):
            return int(match[1])
    return default


def _gpu_style(config: Mapping[str, str]) -> GpuStyle:
    if "gpu" not in {kind.strip() for kind in config.get("GresTypes", "").split(",")}:
        return GpuStyle.NONE
    return GpuStyle.GPUS_PER_NODE if config.get("SelectType") == "select/cons_tres" else GpuStyle.GRES


def _memory_style(config: Mapping[str, str]) -> MemoryStyle:
    if "MEMORY" not in config.get("SelectTypeParameters", "").upper():
        return MemoryStyle.NONE
    # With MaxMemPerCPU a request per node silently takes more CPUs (slurm.conf.5), so it is asked for per CPU.
    return MemoryStyle.PER_CPU if _number(config, "MaxMemPerCPU", 0) else MemoryStyle.PER_NODE


def _gpu_types(gres: str) -> list[str]:
    words = [part.partition("(")[0].split(":") for part in gres.split(",")]
    return [part[1] for part in words if part[0] == "gpu" and len(part) == 3]


def _rights(config: Mapping[str, str], uid: int, admin_level: AdminLevel | None) -> Rights:
    match = re.fullmatch(_USER, config.get("SlurmUser", ""))
    if uid == 0 or (match is not None and int(match[2]) == uid) or admin_level is AdminLevel.ADMINISTRATOR:
        return Rights.ADMINISTRATOR
    return Rights.OPERATOR if admin_level is AdminLevel.OPERATOR else Rights.USER
