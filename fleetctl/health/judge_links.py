"""NVLinks and the fabric behind them. Pure."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from fleetctl.health.deltas import gpu_key, too_fast
from fleetctl.health.findings import (
    NEVER,
    Findings,
    Part,
    Scene,
    code_words,
    failed,
    gpu_part,
    mig_on,
    number,
    numbers,
    passed,
    plain,
    unread,
    untold,
)
from fleetctl.health.model import Care, Change, Finding, Gpu, Mark, Move, Read, Scalar
from fleetctl.health.record import NamedTuple


class LinkStates(NamedTuple):
    """Numbers of the NVLinks of one GPU by state. `unknown`: not read, with the first answer that was none."""

    up: Tuple[int, ...]
    down: Tuple[int, ...]
    unknown: Tuple[int, ...]
    why: Optional[Read]

    @property
    def all(self) -> int:
        return len(self.up) + len(self.down) + len(self.unknown)


def link_states(gpu: Gpu) -> LinkStates:
    """A link whose state is no valid question (INVALID_ARGUMENT, NOT_SUPPORTED) does not exist on this GPU."""
    up: List[int] = []
    down: List[int] = []
    unknown: List[int] = []
    why: Optional[Read] = None
    for index, link in enumerate(gpu.links):
        read = link.get("state")
        state = number(read)
        if state in (0, 1):
            (up if state else down).append(index)
        elif read is None or read.code not in (2, 3):
            unknown.append(index)
            why = why or read
    return LinkStates(tuple(up), tuple(down), tuple(unknown), why)


def judge_links(gpu: Gpu, scene: Scene) -> Findings:
    """The NVLinks of one GPU and its place in the fabric."""
    return (_state(gpu, scene), *_errors(gpu, scene), *_fabric(gpu, scene))


def _state(gpu: Gpu, scene: Scene) -> Finding:
    """As many up as the profile allows. The names of those that are down are told where all of them should be up."""
    states, part, wanted = link_states(gpu), gpu_part(gpu), scene.profile.links
    if not states.all:
        return _no_links(gpu, wanted)
    up, expected = len(states.up), _expected(wanted)
    if states.unknown:  # those that are certainly down are enough where too many are
        possible = range(up, up + len(states.unknown) + 1)
        if not wanted or any(count in wanted for count in possible):
            what = f"the state of NVLink {numbers(states.unknown)}"
            return unread("nvlink_state", gpu, what, states.why)
    if _fine(states, wanted):
        return passed("nvlink_state", part, f"{up} NVLinks of {part.subject} are up", up, expected, "links")
    words = _down(states, part, expected)
    return failed("nvlink_state", part, words, _down_care(gpu, states, scene), up, expected, "links")


def _expected(wanted: Optional[Sequence[int]]) -> Optional[Scalar]:
    """`18`, or `0, 6, 12 or 18` where bridges are optional."""
    if not wanted or len(wanted) == 1:
        return wanted[0] if wanted else None
    return f"{numbers(sorted(wanted)[:-1])} or {max(wanted)}"


def _fine(states: LinkStates, wanted: Optional[Sequence[int]]) -> bool:
    """Without a profile: all alike, since bridges are optional on some GPUs."""
    return len(states.up) in wanted if wanted else not states.up or not states.down


def _down(states: LinkStates, part: Part, expected: Optional[Scalar]) -> str:
    """Their names where all of them should be up; where some may be down by wish nobody knows which."""
    if states.down and expected in (None, states.all):
        one = len(states.down) == 1
        named = f"NVLink {states.down[0]}" if one else f"NVLinks {numbers(states.down)}"
        named = f"all {len(states.down)} NVLinks" if not states.up and not one else named
        return f"{named} of {part.subject} {'is' if one else 'are'} down"
    have = f"{len(states.up)} of {states.all} NVLinks of {part.subject} are up"
    return f"{have}, {expected} are expected"


def _down_care(gpu: Gpu, states: LinkStates, scene: Scene) -> Care:
    """Milder where links may be off by somebody's wish: MIG, no profile, a part of a board."""
    gpus = scene.readings.nvml.gpus if scene.readings.nvml else ()
    off = part_of_board(scene) and not states.up and not any(link_states(one).up for one in gpus)
    return Care.WATCH if mig_on(gpu) or off or not scene.profile.links else Care.RESET


_BOARD = 8  # GPUs on the boards that have NVSwitches (HGX, DGX)


def part_of_board(scene: Scene) -> bool:
    """Some GPUs of a board, as a virtual machine has them, often with their NVLinks off. A learned profile counts its
    GPUs, and knows which of their links should be up."""
    nvml = scene.readings.nvml
    return scene.profile.gpus is None and nvml is not None and len(nvml.gpus) < _BOARD


def _no_links(gpu: Gpu, wanted: Optional[Sequence[int]]) -> Finding:
    part, read = gpu_part(gpu), gpu.reads.get("link_count")
    count = number(read)
    if count == 0 and (not wanted or 0 in wanted):
        return passed("nvlink_state", part, f"{part.subject} has no NVLink", 0, 0, "links")
    if read is not None and read.code in NEVER and (not wanted or 0 in wanted):
        return unread("nvlink_state", gpu, "NVLink", read)
    missing = unread("nvlink_state", gpu, "the state of the NVLinks", None if read is None or not read.code else read)
    return missing._replace(care=max(missing.care, Care.WATCH))


class Errors(NamedTuple):
    """A kind of NVLink error: `per_s` where the limit is a rate, else it counts from look to look."""

    check: str
    key: str
    limit: str
    per_s: float
    words: str


_ERRORS = (
    Errors("nvlink_errors", "recoveries", "nvlink_recoveries", 0, "recoveries"),
    Errors("nvlink_errors", "recovery_failed", "nvlink_recoveries", 0, "failed recoveries"),
    Errors("nvlink_errors", "crc_errors", "nvlink_crc_per_s", 1, "CRC errors"),
    Errors("nvlink_replays", "replays", "nvlink_replays", 0, "replays"),
    Errors("nvlink_replays", "crc_errors", "nvlink_crc", 0, "CRC errors"),
    Errors("nvlink_replays", "receive_errors", "nvlink_crc", 0, "receive errors"),
    Errors("nvlink_replays", "integrity_errors", "nvlink_crc", 0, "integrity errors"),
    Errors("nvlink_replays", "recovery_events", "nvlink_recoveries", 0, "recoveries begun"),
)


_KEYS = tuple(dict.fromkeys(row.key for row in _ERRORS))


def _errors(gpu: Gpu, scene: Scene) -> Findings:
    """DCGM's limits on how the counters rose since the last look."""
    if not gpu.links:
        return ()
    known, rose = _moved(gpu, scene)
    found: Dict[str, List[str]] = {"nvlink_errors": [], "nvlink_replays": []}
    for row in _ERRORS:
        most = scene.rules.limit(row.limit)
        bad = {index: change.by for index, change in rose[row.key].items() if _too_many(change, most, row.per_s)}
        if bad:
            found[row.check].append(f"{sum(bad.values())} {row.words} on NVLink {numbers(tuple(bad))}")
    counted = {row.check for row in _ERRORS if row.key in known}
    return tuple(_error_finding(check, gpu, words, check in counted) for check, words in found.items())


def _moved(gpu: Gpu, scene: Scene) -> Tuple[Set[str], Dict[str, Dict[int, Change]]]:
    """The kinds of counter that can be compared with an earlier look, and of each kind the links where it rose."""
    base = gpu_key(gpu)
    known: Set[str] = set()
    rose: Dict[str, Dict[int, Change]] = {key: {} for key in _KEYS}
    for index in range(len(gpu.links)):
        for key in _KEYS:
            change = scene.changes.get(f"{base}/link/{index}/{key}")
            if change is None or change.move is Move.FIRST:
                continue
            known.add(key)
            if change.by:
                rose[key][index] = change
    return known, rose


def _too_many(change: Change, most: float, per_s: float) -> bool:
    return too_fast(change, most, per_s) if per_s else change.by > most


def _error_finding(check: str, gpu: Gpu, words: Sequence[str], known: bool) -> Finding:
    part = gpu_part(gpu)
    if words:
        care = Care.RESET if check == "nvlink_errors" else Care.WATCH
        return failed(check, part, f"{part.subject} had {'; '.join(words)} since the last look", care, expected=0)
    if known:
        return passed(check, part, f"the NVLinks of {part.subject} had no such error since the last look", 0, 0)
    return untold(check, part, f"no earlier look in this boot has counted the NVLink errors of {part.subject}")


_UP = 3
_FABRIC_STATES = {1: "not started", 2: "in progress"}
# nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*: shift -> what true means. Two bits each: 1 true, 2 false, 0 not told.
_MASK: Mapping[int, str] = {0: "its bandwidth is degraded", 4: "a route is unhealthy"}
_MASK_PASSING: Mapping[int, str] = {2: "a route is recovering", 6: "it recovers from an access time-out"}
# Here the bad value is 2: false, disconnected. The GPU works for what runs on it now.
_MASK_WATCHED: Mapping[int, str] = {12: "no partition is assigned", 14: "the fabric manager is disconnected"}
_CONFIGURATION_SHIFT = 8
_CONFIGURATIONS = {
    2: "wrong system GUID",
    3: "wrong chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible firmware",
    7: "invalid location",
    8: "bad GPU state",
}


def _fabric(gpu: Gpu, scene: Scene) -> Findings:
    """A GPU behind NVSwitches cannot run CUDA before the fabric manager has let it in."""
    read, part, wanted = gpu.reads.get("fabric_state"), gpu_part(gpu), scene.profile.fabric
    state = number(read)
    if state is None:
        return (unread("fabric", gpu, "the state of the NVLink fabric", read),)
    if state == 0:
        if wanted:
            words = f"{part.subject} belongs to no NVLink fabric, though the profile says it should"
            return (failed("fabric", part, words, Care.DRAIN, 0, _UP),)
        return (passed("fabric", part, f"{part.subject} has no NVLink fabric", 0),)
    if state in _FABRIC_STATES:
        words = f"the NVLink fabric of {part.subject} is {_FABRIC_STATES[int(state)]}: is the fabric manager running?"
        starting = not scene.for_a_job and scene.readings.uptime_s < scene.rules.limit("fabric_start_s")
        care = Care.WATCH if starting else Care.DRAIN  # a job cannot start; the node may yet come up
        return (failed("fabric", part, words, care, state, _UP, mark=Mark.TRANSIENT),)
    if state != _UP:
        words = f"the NVLink fabric of {part.subject} has the unknown state {plain(state)}"
        return (failed("fabric", part, words, Care.WATCH, state, _UP),)
    return (_fabric_health(gpu, part),)


def _fabric_health(gpu: Gpu, part: Part) -> Finding:
    status = number(gpu.reads.get("fabric_status"))
    if status is None:
        return unread("fabric", gpu, "the status of the NVLink fabric", gpu.reads.get("fabric_status"))
    name = f"the NVLink fabric of {part.subject}"
    if status != 0:
        return failed("fabric", part, f"{name} has failed: {code_words(int(status))}", Care.DRAIN, int(status), 0)
    mask = int(number(gpu.reads.get("fabric_mask")) or 0)
    summary = number(gpu.reads.get("fabric_summary"))
    bad = [words for shift, words in _MASK.items() if mask >> shift & 3 == 1]
    wrong = mask >> _CONFIGURATION_SHIFT & 0xF
    if wrong > 1:
        bad.append(f"wrong configuration: {_CONFIGURATIONS.get(wrong, wrong)}")
    passing = [words for shift, words in _MASK_PASSING.items() if mask >> shift & 3 == 1]
    if bad or summary == 2:
        words = f"{name} is unhealthy: {', '.join(bad + passing) or 'the driver says no more'}"
        return failed("fabric", part, words, Care.DRAIN, mask)
    if passing:
        return failed("fabric", part, f"{name}: {', '.join(passing)}", Care.DRAIN, mask, mark=Mark.TRANSIENT)
    watched = [words for shift, words in _MASK_WATCHED.items() if mask >> shift & 3 == 2]
    if summary == 3:
        watched.append("it has a limited capacity")
    if watched:
        return failed("fabric", part, f"{name}: {', '.join(watched)}", Care.WATCH, mask)
    return passed("fabric", part, f"{name} is up", _UP, _UP)
