"""The machine around the GPUs: file systems, memory, clock, processes; and whether its files could be read. Pure."""

from __future__ import annotations

from typing import Dict, Iterable, List, Optional

from fleetctl.health.deltas import too_fast
from fleetctl.health.findings import NODE, Findings, Part, Scene, failed, passed, plain, untold
from fleetctl.health.model import Answer, Care, Finding, Host, Mount, Move, Phase

_GIB = 1 << 30
# These cost a system call or more for each time that is asked for, since the CPU's own counter is not trusted.
_SLOW_CLOCKS = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"})
_OF_THE_DRIVER = ("nvidia-", "nv-", "dcgm", "nvsm")
_NO_LOG = ("log", Answer.FAILED)
_READERS: Dict[str, str] = {"files": "sysfs and procfs", "devices": "PCIe devices", "ports": "network ports"}


def judge_files(scene: Scene) -> Findings:
    """The readers that did not come back. Files that hang are a sick node's; a reader that failed may be our bug."""
    bad = {name: answer for name, answer in scene.readings.failed.items() if answer is not Answer.ANSWERED}
    # That the kernel log cannot be read is told by its own checks (judge_log.py).
    found = [_reader(name, answer) for name, answer in sorted(bad.items()) if (name, answer) != _NO_LOG]
    if not scene.readings.boot_id:
        words = "the kernel's boot id cannot be read: no counter can be compared with an earlier look"
        found.append(untold("files", NODE, words, Care.WATCH))
    return tuple(found) or (passed("files", NODE, "all that was looked for could be read"),)


def _reader(name: str, answer: Answer) -> Finding:
    what = _READERS.get(name, name)
    if answer in (Answer.HUNG, Answer.BUSY):
        return untold("files", NODE, f"reading {what} hangs: reboot the node", Care.DRAIN)
    return untold("files", NODE, f"{what} could not be read ({answer.value})", Care.WATCH)


def judge_host(scene: Scene) -> Findings:
    """All about the machine."""
    host = scene.readings.host
    if host is None:
        return _nothing(scene)
    found: List[Finding] = []
    for mount in host.mounts:
        found += _mount(mount, scene)
    found += _shm(host, scene)
    found += _memory(host, scene)
    found += _edac(scene)
    found += _stuck(host, scene)
    if not scene.for_a_job:
        found += _clock(host)
        found += _governor(host)
    return tuple(found)


def _nothing(scene: Scene) -> Findings:
    """No file of the machine was read: `files` says why, and nothing here is called well."""
    checks = ["shm", "host_memory", "edac", "edac_corrected"]
    checks += [] if scene.for_a_job else ["clock", "clock_source", "governor"]
    checks += [] if scene.asked.phase is Phase.PROLOG else ["stuck"]
    return tuple(untold(check, NODE, f"{_UNREAD[check]} was not read") for check in checks)


_UNREAD = {
    "shm": "the space in /dev/shm",
    "host_memory": "the size of the memory",
    "edac": "the count of uncorrected errors of the node's memory",
    "edac_corrected": "the count of corrected errors of the node's memory",
    "clock": "whether the clock is synchronised",
    "clock_source": "the kernel's clock source",
    "governor": "the frequency governor of the CPUs",
    "stuck": "what waits in the kernel",
}
_MOUNT_STATES = {
    "missing": "is not mounted",
    "read_only": "is read-only",
    "hung": "does not answer",
    "failed": "cannot be read",
}


def _mount(mount: Mount, scene: Scene) -> Iterable[Finding]:
    part = Part(f"file system {mount.path}", f"mount/{mount.path}")
    detail = f" ({mount.detail})" if mount.detail else ""
    if mount.state != "ok":
        words = f"{part.subject} {_MOUNT_STATES.get(mount.state, mount.state)}{detail}"
        yield failed("file_systems", part, words, Care.DRAIN, mount.state, "ok")
        return
    yield passed("file_systems", part, f"{part.subject} is mounted", "ok", "ok")
    shares = (("space", mount.free, "free_share"), ("inodes", mount.free_inodes, "free_inodes_share"))
    known = [(what, share, scene.rules.limit(limit)) for what, share, limit in shares if share is not None]
    for what, share, least in known:
        if share < least:
            words = f"{part.subject} has {share:.1%} of its {what} left, {least:.0%} is the least"
            yield failed("file_space", part, words, Care.WATCH, share, least)
            return
    if known:
        yield passed("file_space", part, f"{part.subject} has {known[0][1]:.0%} of its {known[0][0]} left", known[0][1])
    else:
        yield untold("file_space", part, f"the space left on {part.subject} was not read")


def _shm(host: Host, scene: Scene) -> Iterable[Finding]:
    total, free, least = host.shm_bytes, host.shm_free_bytes, scene.rules.limit("shm_free_share")
    if not total or free is None:
        return [untold("shm", NODE, f"{_UNREAD['shm']} was not read")]
    share = free / total
    words = f"{share:.0%} of /dev/shm is free"
    if share < least:
        return [failed("shm", NODE, f"only {words}, {least:.0%} is the least", Care.WATCH, share, least)]
    return [passed("shm", NODE, words, share, least)]


def _memory(host: Host, scene: Scene) -> Iterable[Finding]:
    have, wanted = host.memory_bytes, scene.profile.host_memory_bytes
    if have is None:
        return [
            untold("host_memory", NODE, f"{_UNREAD['host_memory']} was not read", Care.WATCH if wanted else Care.IGNORE)
        ]
    gib = have // _GIB
    if wanted is None or have >= wanted * scene.rules.limit("host_memory_share"):
        return [passed("host_memory", NODE, f"the node has {gib} GiB", gib, _gib(wanted), "GiB")]
    words = f"the node has {gib} GiB of memory, {wanted // _GIB} GiB is expected"
    return [failed("host_memory", NODE, words, Care.DRAIN, gib, _gib(wanted), "GiB")]


def _gib(size: Optional[int]) -> Optional[int]:
    return None if size is None else size // _GIB


def _edac(scene: Scene) -> Iterable[Finding]:
    """Errors of the node's memory since the last look. Where no controller counts, nothing can be told; where one of
    two counts cannot be read, that is odd."""
    per_h = scene.rules.limit("edac_corrected_per_h")
    host = scene.readings.host or Host()
    odd = (host.edac_uncorrected is None) != (host.edac_corrected is None)
    for check, key in (("edac", "node/edac_uncorrected"), ("edac_corrected", "node/edac_corrected")):
        change = scene.changes.get(key)
        if change is None:
            yield untold(check, NODE, f"{_UNREAD[check]} was not read", Care.WATCH if odd else Care.IGNORE)
            continue
        kind = "uncorrected" if check == "edac" else "corrected"
        if change.move is Move.FIRST:
            yield untold(
                check, NODE, f"no earlier look in this boot has counted the {kind} errors of the node's memory"
            )
            continue
        words = f"the node's memory had {change.by} {kind} errors since the last look"
        if change.by > 0 if check == "edac" else too_fast(change, per_h, 3600.0):
            yield failed(check, NODE, words, Care.DRAIN if check == "edac" else Care.WATCH, change.by, 0, "errors")
        else:
            yield passed(check, NODE, words, change.by, 0, "errors")


def _stuck(host: Host, scene: Scene) -> Iterable[Finding]:
    """In the prolog nobody looks for them, and an empty list then says nothing. A look sees one moment, in which sound
    processes wait as well: only very many say something."""
    if scene.asked.phase is Phase.PROLOG and not host.stuck:
        return []
    waiting = [one for one in host.stuck if one.state == "D"]
    dead = sum(1 for one in host.stuck if one.state == "Z")
    driver = [one for one in waiting if one.name.startswith(_OF_THE_DRIVER)]
    most, zombies = scene.rules.limit("stuck_processes"), scene.rules.limit("zombies")
    if len(waiting) > most or dead > zombies:
        words = f"{len(waiting)} processes wait in the kernel, {dead} are dead and not buried"
        return [failed("stuck", NODE, words, Care.WATCH, len(waiting), plain(most), "processes")]
    among = f", {driver[0].name} (pid {driver[0].pid}) among them" if driver else ""
    words = f"{len(waiting)} processes wait in the kernel{among}"
    return [passed("stuck", NODE, words, len(waiting), plain(most), "processes")]


def _clock(host: Host) -> Iterable[Finding]:
    """A clock that nobody synchronises may be the site's way (a host that does it for its containers, ntpdate): told,
    and nothing more unless the site says so."""
    if host.clock_synchronised is None:
        yield untold("clock", NODE, f"{_UNREAD['clock']} was not read")
    elif host.clock_synchronised:
        yield passed("clock", NODE, "the clock is synchronised", 1, 1)
    else:
        yield failed("clock", NODE, "the clock is not synchronised: is chronyd running?", Care.IGNORE, 0, 1)
    source = host.clock_source
    if source is None:
        yield untold("clock_source", NODE, f"{_UNREAD['clock_source']} was not read")
    elif source in _SLOW_CLOCKS:
        words = f"the kernel uses the slow clock {source}: the CPU's own was not stable at boot"
        yield failed("clock_source", NODE, words, Care.WATCH, source, "tsc")
    else:
        yield passed("clock_source", NODE, f"the kernel uses the clock {source}", source)


def _governor(host: Host) -> Iterable[Finding]:
    """powersave is what Intel's own driver calls its normal mode; only a mixture or a slow one says something."""
    names = sorted(set(host.governors))
    if not names:
        return [untold("governor", NODE, "no CPU tells its frequency governor")]
    words = f"CPUs run with {', '.join(names)}"
    if len(names) > 1 or names[0] == "conservative":
        return [
            failed("governor", NODE, f"{words}: set all to performance", Care.WATCH, ", ".join(names), "performance")
        ]
    return [passed("governor", NODE, words, names[0], "performance")]
