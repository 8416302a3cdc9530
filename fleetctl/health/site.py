"""What a site says about node checks: one JSON file. A mistake in it costs the value it is in, never a node.

So a mistake may not take a limit away either: with one in `budget`, or in all of `care`, no node is drained, but for a
lost GPU, until it is mended.
"""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from fleetctl.health.record import NamedTuple
from fleetctl.health.service import Back

ETC = "/etc/fleetctl/site.json"
_MOST_BYTES = 1 << 20
_MOST_SECONDS = 86400.0 * 366
_LEAST_WINDOW_S = 60.0  # a fleet's checks take minutes to come round: a shorter window would limit nothing
_NODE = "%n"  # stands for the node's name in every path


class Budget(NamedTuple):
    """How many nodes of the fleet fleetctl may drain in any `window_s` seconds. `folder` is shared; None: no limit,
    unless `most` is 0. A lost GPU closes its node whatever the budget says."""

    folder: Optional[str] = None
    most: int = 1
    window_s: float = 86400.0


class Site(NamedTuple):
    """The settings. Seconds end in _s, paths are absolute. `complaints` says what was wrong with the file."""

    deadline_s: float = 8.0  # under Slurm's MessageTimeout (default 10 s), which a prolog should not outlast
    settle_s: float = 3.0
    boot_settle_s: float = 60.0  # a fabric manager may take a minute after a boot
    slurm_wait_s: float = 2.0
    folder: str = "/var/spool/fleetctl"
    stuck: str = "/run/fleetctl/stuck"  # the prolog itself looks there, not a child: on tmpfs, for a disk may hang
    shared: Optional[str] = None
    profile: Optional[str] = None
    library: Optional[str] = None
    sys: str = "/sys"
    proc: str = "/proc"
    kmsg: str = "/dev/kmsg"
    shm: str = "/dev/shm"
    tmp: Tuple[str, ...] = ("/tmp",)
    scontrol: str = "/usr/bin/scontrol"
    slurm_conf: Optional[str] = None  # a HealthCheckProgram is not told SLURM_CONF; None: where Slurm looks by default
    budget: Budget = Budget()
    back: Back = Back()
    care: Mapping[str, str] = {}
    xids: Mapping[str, str] = {}
    limits: Mapping[str, float] = {}
    mounts: Tuple[str, ...] = ()
    skip_ports: Tuple[str, ...] = ()
    xid_window_s: float = 3600.0
    source: str = ""
    complaints: Tuple[str, ...] = ()


def node_name(environ: Mapping[str, str], host: str) -> str:
    """SLURMD_NODENAME, else the host's name up to its first dot; safe as the name of a file."""
    name = environ.get("SLURMD_NODENAME") or host.split(".")[0]
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in name)[:255]
    return kept if kept.strip(".") else "unknown"


def find_site(given: Optional[str], beside: Optional[str]) -> Optional[str]:
    """The path of the site file: the given one, else site.json in the folder of the code, else in /etc."""
    if given is not None:
        return given
    candidates = ([] if beside is None else [os.path.join(beside, "site.json")]) + [ETC]
    return next((path for path in candidates if os.path.exists(path)), None)


def with_profile(site: Site, beside: Optional[str]) -> Site:
    """With the profile.json in the folder of the code, where the site file names none."""
    path = None if beside is None else os.path.join(beside, "profile.json")
    return site._replace(profile=path) if site.profile is None and path is not None and os.path.exists(path) else site


def load_site(path: Optional[str], node: str) -> Site:
    """The settings in this file; those by default where there is none. Never raises."""
    if path is None:
        return Site()
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            text = os.read(handle, _MOST_BYTES + 1)
        finally:
            os.close(handle)
    except OSError as error:
        return _broken(path, f"cannot be read: {error.strerror}")
    if len(text) > _MOST_BYTES:
        return _broken(path, "has more than 1 MiB")
    return parse_site(text.decode("utf-8", "replace"), node, path)


def parse_site(text: str, node: str, source: str = "") -> Site:
    """The settings in this text. What is wrong there keeps its default and is named in `complaints`."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        return _broken(source, f"is not JSON: {error}")
    if not isinstance(raw, dict):
        return _broken(source, "must be one JSON object")
    values, complaints = _read(raw, _KEYS, "")
    if "care" in raw and "care" not in values:
        values["budget"] = Budget(most=0)
    site = Site(**values)
    return _named(site, node)._replace(source=source, complaints=tuple(complaints))


def _broken(source: str, why: str) -> Site:
    """The defaults, and no drain but for a lost GPU: nobody knows which faults this site lives with, and a file that is
    broken here may be broken on every node."""
    return Site(budget=Budget(most=0), source=source, complaints=(why + _NO_DRAIN,))


_Reader = Callable[[Any], Any]
_NO_DRAIN = "; until it is mended only a lost GPU drains a node"


def _read(raw: Mapping[str, Any], keys: Mapping[str, _Reader], under: str) -> Tuple[Dict[str, Any], List[str]]:
    values: Dict[str, Any] = {}
    complaints: List[str] = []
    for key, value in raw.items():
        if key not in keys:
            complaints.append(f"unknown key {under}{key[:60]}")
            continue
        try:
            values[key] = keys[key](value)
        except _Wrong as error:
            if error.kept is not None:
                values[key] = error.kept
            complaints.extend(wrong if error.whole else f"{under}{key}{wrong}" for wrong in error.wrongs)
    return values, complaints


class _Wrong(Exception):
    """What is wrong with one value, and what of it can be kept all the same. The words follow the key, unless they are
    `whole`."""

    def __init__(self, *wrongs: str, kept: Any = None, whole: bool = False) -> None:
        super().__init__(*wrongs)
        self.wrongs, self.kept, self.whole = wrongs, kept, whole


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST_SECONDS:
        raise _Wrong(" must be a number of seconds")
    return float(value)


def _window(value: Any) -> float:
    seconds = _seconds(value)
    if seconds < _LEAST_WINDOW_S:
        raise _Wrong(f" must be {_LEAST_WINDOW_S:.0f} seconds or more")
    return seconds


def _deadline(value: Any) -> float:
    seconds = _seconds(value)
    if not 0.5 <= seconds <= 3600:
        raise _Wrong(" must be between 0.5 and 3600 seconds")
    return seconds


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1_000_000:
        raise _Wrong(" must be a whole number, 0 or more")
    return value


def _path(value: Any) -> str:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise _Wrong(" must be an absolute path")
    return value


def _path_or_none(value: Any) -> Optional[str]:
    return None if value is None else _path(value)


def _texts(value: Any) -> Tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _Wrong(" must be a list of texts")
    return tuple(value)


def _paths(value: Any) -> Tuple[str, ...]:
    return tuple(_path(item) for item in _texts(value))


def _mapping(of: Callable[[Any], bool], what: str) -> _Reader:
    def read(value: Any) -> Dict[str, Any]:
        if not isinstance(value, dict):
            raise _Wrong(" must be an object")
        good = {key: item for key, item in value.items() if of(item)}
        if len(good) < len(value):
            raise _Wrong(*(f".{key[:60]} must be {what}" for key in value if key not in good), kept=good)
        return good

    return read


def _care(value: Any) -> Dict[str, str]:
    """What makes no sense is watched: the site lives with that fault in some way, and the default may close nodes."""
    if not isinstance(value, dict):
        raise _Wrong(" must be an object" + _NO_DRAIN)
    read = {key: item if isinstance(item, str) else "watch" for key, item in value.items()}
    wrongs = [f".{key[:60]} must be a text; it is watched" for key in value if not isinstance(value[key], str)]
    if wrongs:
        raise _Wrong(*wrongs, kept=read)
    return read


_words = _mapping(lambda item: isinstance(item, str), "a text")
_numbers = _mapping(
    lambda item: isinstance(item, (int, float)) and not isinstance(item, bool) and abs(item) < float("inf"), "a number"
)


def _part(name: str, make: Callable[..., Any], keys: Mapping[str, _Reader]) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Wrong(" must be an object")
        values, complaints = _read(value, keys, name + ".")
        if complaints:
            raise _Wrong(*complaints, kept=make(**values), whole=True)
        return make(**values)

    return read


def _budget(value: Any) -> Budget:
    """A limit that cannot be read is the narrowest one."""
    try:
        budget: Budget = _BUDGET(value)
    except _Wrong as error:
        raise _Wrong(*(wrong + _NO_DRAIN for wrong in error.wrongs), kept=Budget(most=0), whole=error.whole) from None
    if "most" in value and "folder" not in value and budget.most > 0:
        raise _Wrong(" needs the folder that its nodes share" + _NO_DRAIN, kept=Budget(most=0))
    return budget


_BUDGET = _part("budget", Budget, {"folder": _path_or_none, "most": _count, "window_s": _window})
_KEYS: Dict[str, _Reader] = {
    "deadline_s": _deadline,
    "settle_s": _seconds,
    "boot_settle_s": _seconds,
    "slurm_wait_s": _seconds,
    "folder": _path,
    "stuck": _path,
    "shared": _path_or_none,
    "profile": _path_or_none,
    "library": _path_or_none,
    "sys": _path,
    "proc": _path,
    "kmsg": _path,
    "shm": _path,
    "tmp": _paths,
    "scontrol": _path,
    "slurm_conf": _path_or_none,
    "budget": _budget,
    "back": _part("back", Back, {"most": _count, "window_s": _seconds, "cool_down_s": _seconds}),
    "care": _care,
    "xids": _words,
    "limits": _numbers,
    "mounts": _paths,
    "skip_ports": _texts,
    "xid_window_s": _seconds,
}


def _named(site: Site, node: str) -> Site:
    """With the node's name in every path."""

    def one(path: Optional[str]) -> Optional[str]:
        return None if path is None else path.replace(_NODE, node)

    def many(paths: Sequence[str]) -> Tuple[str, ...]:
        return tuple(path.replace(_NODE, node) for path in paths)

    paths = {key: one(getattr(site, key)) for key in _PATHS}
    budget = site.budget._replace(folder=one(site.budget.folder))
    return site._replace(**paths, tmp=many(site.tmp), mounts=many(site.mounts), budget=budget)  # type: ignore[arg-type]


_PATHS = ("folder", "stuck", "shared", "profile", "library", "sys", "proc", "kmsg", "shm", "scontrol", "slurm_conf")
