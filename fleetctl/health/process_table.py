"""The processes of a node as /proc shows them: whose they are, and of which job, by their cgroup and by their own word.

A process may rewrite its own environment, vanish while it is looked at, or have any name: nothing here raises for that.
"""

from __future__ import annotations

import os
import re
from typing import Dict, Iterator, List, Optional, Set, Tuple

from fleetctl.health.record import NamedTuple

_MOST_ENVIRON = 1 << 20
_MOST_TEXT = 64 << 10
_MOST_PROCESSES = 65_536
_MOST_FOLDERS = 2000
_SCRIPTS = (b"SLURM_SCRIPT_CONTEXT=prolog_slurmd", b"SLURM_SCRIPT_CONTEXT=epilog_slurmd")
_CONTROLLERS = ("freezer", "memory", "cpuset", "devices", "cpu,cpuacct")
# Anchored: what a user makes below a group of his own proves nothing. v2, with several slurmd on a host; then v1.
_JOB_V2 = re.compile(r"(?:/system\.slice)?/(?:[^/]+_)?slurmstepd\.scope/job_(\d+)(?:/.*)?")
_JOB_V1 = re.compile(r"/slurm(?:_[^/]+)?/uid_\d+/job_(\d+)(?:/.*)?")
# logind's: a login's session, with the shell of a salloc that was begun there, and what systemd starts for a user.
_LOGIN = re.compile(r"/user\.slice/.*")
_USER_MANAGER = re.compile(r"/user\.slice/user-\d+\.slice/user@\d+\.service/init\.scope")


class Job(NamedTuple):
    """The job that ended: Slurm's raw id (also of an array task or a part of a hetjob); `uid` None: not told."""

    job_id: str
    uid: Optional[int]


class Seen(NamedTuple):
    """A process. `uid` is the real one, `started` is in ticks since boot (field 22 of /proc/PID/stat).

    `told` is SLURM_JOB_ID of its environment, `group` the job of its cgroup: "" is none, None is not readable or
    contradictory. `role` is "script" for a prolog or epilog, "manager" for systemd's own of a user, "login" for what
    else is a login's, else "". `place` are the lines of its cgroups.
    """

    pid: int
    started: int
    uid: int
    name: str
    state: str
    told: Optional[str]
    group: Optional[str]
    role: str = ""
    place: str = ""


def look(job: Job, proc: str, cgroup: str) -> Optional[Tuple[Seen, ...]]:
    """All living processes of the job's cgroup and of its user; None: this /proc does not even show ourselves."""
    try:
        names = os.listdir(proc)
    except OSError:
        return None
    if str(os.getpid()) not in names:
        return None
    grouped = _cgroup_pids(job, cgroup)
    found = []
    for name in names[:_MOST_PROCESSES]:
        if not name.isdigit():
            continue
        seen = see(int(name), proc, job.uid, grouped)
        if seen is not None:
            found.append(seen)
    return tuple(found)


def see(pid: int, proc: str, uid: Optional[int], grouped: Set[int]) -> Optional[Seen]:
    """The process, if it lives and is of this user (never root) or of these pids."""
    folder = f"{proc}/{pid}"
    status = status_of(folder)
    if status is None:
        return None
    real = int(status["Uid"].split()[0])
    if pid not in grouped and (not uid or real != uid):
        return None
    state = status["State"][:1]
    if state in "ZX" and status.get("Threads", "1") in ("0", "1"):  # with more, only its first thread is dead
        return None
    started = _started(folder)
    if started is None:
        return None
    place = place_of(folder)
    group, role = (None, "") if place is None else (job_of_cgroup(place), role_of_cgroup(place))
    told, script = _told(folder)
    role = "script" if script else role
    return Seen(pid, started, real, status["Name"], state, told, group, role, place or "")


def job_of_cgroup(text: str) -> Optional[str]:
    """The job id in the lines of /proc/PID/cgroup; "": in none; None: in two at once, which proves nothing."""
    ids = set()
    for path in _paths(text):
        match = _JOB_V2.fullmatch(path) or _JOB_V1.fullmatch(path)
        if match:
            ids.add(match[1])
    return None if len(ids) > 1 else ids.pop() if ids else ""


def job_of_environ(data: bytes, *, whole: bool) -> Optional[str]:
    """SLURM_JOB_ID in the bytes of /proc/PID/environ; "": not there; None: twice and different, or `data` was cut."""
    values = {part[len(b"SLURM_JOB_ID=") :] for part in data.split(b"\0") if part.startswith(b"SLURM_JOB_ID=")}
    if len(values) > 1 or not whole:
        return None
    return values.pop().decode("ascii", "replace") if values else ""


def _paths(text: str) -> Iterator[str]:
    return (line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2)


def read_bytes(path: str, most: int) -> Optional[bytes]:
    """At most `most` bytes of a file in /proc; None: not readable, or the process is gone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while most > 0:
            part = os.read(handle, most)
            if not part:
                break
            parts.append(part)
            most -= len(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(handle)


def status_of(folder: str) -> Optional[Dict[str, str]]:
    data = read_bytes(f"{folder}/status", _MOST_TEXT)
    if not data:
        return None
    pairs = (line.partition(":") for line in data.decode("utf-8", "replace").split("\n"))
    status = {key: value.strip() for key, _, value in pairs}
    whole = all(status.get(key) for key in ("Name", "State", "PPid")) and status.get("Uid", "").split()[:1]
    return status if whole and status["Uid"].split()[0].isdigit() else None


def _started(folder: str) -> Optional[int]:
    data = read_bytes(f"{folder}/stat", _MOST_TEXT)
    fields = data[data.rfind(b")") + 1 :].split() if data else []
    return int(fields[19]) if len(fields) > 19 and fields[19].isdigit() else None


def place_of(folder: str) -> Optional[str]:
    """The lines of /proc/PID/cgroup; None: not readable."""
    data = read_bytes(f"{folder}/cgroup", _MOST_TEXT)
    return None if data is None else data.decode("utf-8", "replace")


def role_of_cgroup(text: str) -> str:
    """The role by the lines of /proc/PID/cgroup."""
    if any(_USER_MANAGER.fullmatch(path) for path in _paths(text)):
        return "manager"
    return "login" if any(_LOGIN.fullmatch(path) for path in _paths(text)) else ""


def _told(folder: str) -> Tuple[Optional[str], bool]:
    data = read_bytes(f"{folder}/environ", _MOST_ENVIRON)
    if data is None:
        return None, False
    script = any(part in _SCRIPTS for part in data.split(b"\0"))
    return job_of_environ(data, whole=len(data) < _MOST_ENVIRON), script


def _cgroup_pids(job: Job, root: str) -> Set[int]:
    """The pids in the job's own cgroups, v2 or v1; none where Slurm makes no cgroups."""
    pids: Set[int] = set()
    left = _MOST_FOLDERS
    folders = list(_job_folders(job, root))
    while folders and left > 0:
        folder = folders.pop()
        left -= 1
        data = read_bytes(f"{folder}/cgroup.procs", _MOST_ENVIRON) or b""
        pids.update(int(word) for word in data.split() if word.isdigit() and word != b"0")
        folders += _folders(folder)
    return pids


def _job_folders(job: Job, root: str) -> Iterator[str]:
    name = f"job_{job.job_id}"
    yield from (f"{scope}/{name}" for scope in _scopes(root))
    yield from (f"{slurm}/uid_{job.uid}/{name}" for slurm in _slurms(root))


def _scopes(root: str) -> Iterator[str]:
    for top in (root, f"{root}/system.slice", f"{root}/unified", f"{root}/unified/system.slice"):
        yield from (scope for scope in _folders(top) if scope.endswith("slurmstepd.scope"))


def _slurms(root: str) -> Iterator[str]:
    for controller in _CONTROLLERS:
        yield from (f for f in _folders(f"{root}/{controller}") if os.path.basename(f).split("_")[0] == "slurm")


def _folders(path: str) -> List[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
