"""InfiniBand and RoCE ports: up, fast, wide, and without errors. Pure.

Only a learned list says which ports must be up: without one, a port that is down is nothing.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from fleetctl.health.deltas import port_key, too_fast
from fleetctl.health.findings import NODE, Findings, Part, Scene, failed, passed, plain, untold
from fleetctl.health.model import Care, Change, Finding, Mark, Move, Port
from fleetctl.health.record import NamedTuple
from fleetctl.health.wanted import PortWanted

_UP = frozenset({"ACTIVE", "ACTIVE_DEFER"})
# On their way up: a subnet manager or the cable's training is at work.
_COMING = frozenset({"INIT", "ARMED"})
_COMING_UP = frozenset({"Polling", "PortConfigurationTraining", "LinkErrorRecovery"})


def judge_ports(scene: Scene) -> Findings:
    """All about all ports."""
    ports, wanted = scene.readings.ports, scene.profile.ports
    if ports is None:  # `files` says why
        state = untold("port_state", NODE, _UNREAD, Care.WATCH if wanted else Care.IGNORE)
        return (state, *(untold(check, NODE, _UNREAD) for check in _OTHER_CHECKS))
    found: List[Finding] = []
    if wanted is None:
        if ports:
            found.append(untold("port_state", NODE, "no learned profile says which network ports must be up"))
        found += _beside_siblings(ports)
    else:
        by_name = {(port.device, port.port): port for port in ports}
        for one in wanted:
            found += _wanted(one, by_name.get((one.device, one.port)))
    listed = {(one.device, one.port) for one in wanted or ()}
    for port in ports:
        found += _counters(port, (port.device, port.port) in listed, scene)
    return tuple(found)


_UNREAD = "the network ports were not read"
_OTHER_CHECKS = ("port_rate", "port_width", "port_counters", "port_errors", "counter_ceiling", "counter_backwards")


def port_part(device: str, port: int) -> Part:
    """`port mlx5_0/1`."""
    return Part(f"port {device}/{port}", f"port/{device}/{port}")


def _wanted(wanted: PortWanted, port: Optional[Port]) -> Iterable[Finding]:
    part = port_part(wanted.device, wanted.port)
    if port is None:
        yield failed("port_state", part, f"{part.subject} is not there", Care.DRAIN, "missing", "ACTIVE")
        return
    if port.state is None:
        yield untold("port_state", part, f"the state of {part.subject} cannot be read", Care.DRAIN)
        return
    state = f"{port.state}, {port.phys_state}" if port.phys_state else port.state
    if port.state not in _UP:
        coming = port.state in _COMING or port.phys_state in _COMING_UP
        why = ": is the subnet manager running?" if port.state in _COMING else ""
        words = f"{part.subject} is not up ({state}){why}"
        mark = Mark.TRANSIENT if coming else Mark.NONE
        yield failed("port_state", part, words, Care.DRAIN, state, "ACTIVE", mark=mark)
        return
    if port.operstate == "down":
        words = f"{part.subject} is up, but its interface {port.netdev or ''} is down"
        # A bond goes on with its other leg, and its device shows the interface of one of them.
        bonded = "bond" in port.device or "bond" in (port.netdev or "")
        yield failed("port_state", part, words, Care.WATCH if bonded else Care.DRAIN, "down", "up")
        return
    yield passed("port_state", part, f"{part.subject} is up", state, "ACTIVE")
    yield from _speed(part, wanted, port)


def _speed(part: Part, wanted: PortWanted, port: Port) -> Iterable[Finding]:
    """A port that is too narrow is too slow as well: that is told once."""
    narrow = False
    if wanted.width is not None:
        finding = _wide(part, port.width, wanted.width)
        narrow = finding.care is Care.DRAIN
        yield finding
    if wanted.rate_gbps is None or narrow:
        return
    rate = port.rate_gbps
    if rate is None:
        yield untold("port_rate", part, f"the rate of {part.subject} cannot be read", Care.WATCH)
    elif rate < wanted.rate_gbps:
        words = f"{part.subject} runs at {plain(rate)} Gb/s, {plain(wanted.rate_gbps)} Gb/s is expected"
        yield failed("port_rate", part, words, Care.DRAIN, rate, wanted.rate_gbps, "Gb/s")
    else:
        yield passed("port_rate", part, f"{part.subject} runs at {plain(rate)} Gb/s", rate, wanted.rate_gbps, "Gb/s")


def _wide(part: Part, width: Optional[int], wanted: int) -> Finding:
    if width is None:
        return untold("port_width", part, f"the width of {part.subject} cannot be read", Care.WATCH)
    if width < wanted:
        words = f"{part.subject} runs at width {width}X, {wanted}X is expected"
        return failed("port_width", part, words, Care.DRAIN, width, wanted, "lanes")
    return passed("port_width", part, f"{part.subject} runs at width {width}X", width, wanted, "lanes")


def _beside_siblings(ports: Sequence[Port]) -> Iterable[Finding]:
    """A port that is narrower than others of its kind may be meant so, and is worth a line."""
    kinds: Dict[Tuple[str, Optional[str]], List[Port]] = {}
    for port in ports:
        if port.state in _UP and port.width is not None:
            kinds.setdefault((port.device.rstrip("0123456789"), port.link_layer), []).append(port)
    for alike in kinds.values():
        widest = max(port.width or 0 for port in alike)
        for port in alike:
            part = port_part(port.device, port.port)
            width = port.width or 0
            if width < widest:
                words = f"{part.subject} runs at width {width}X, others of its kind at {widest}X"
                yield failed("port_width", part, words, Care.WATCH, width, widest, "lanes")
            else:
                yield passed("port_width", part, f"{part.subject} runs at width {width}X", width, widest, "lanes")


class Counter(NamedTuple):
    """How fast a counter may rise: `limit` in `per_s` seconds, or from look to look where that is 0."""

    name: str
    limit: str
    per_s: float = 0.0


# What the cable or the port itself does wrong.
PHYSICAL = (
    Counter("link_downed", "link_downs"),
    Counter("local_link_integrity_errors", "local_link_integrity_errors"),
    Counter("excessive_buffer_overrun_errors", "excessive_buffer_overrun_errors"),
    Counter("symbol_error", "symbol_error_per_h", 3600.0),
)
# What may be the other end's fault, a switch's restart, or congestion.
OTHERS = (
    Counter("link_downed", "link_downed"),
    Counter("link_error_recovery", "link_error_recovery_per_min", 60.0),
    Counter("port_rcv_errors", "port_rcv_errors_per_s", 1.0),
    Counter("port_xmit_discards", "port_xmit_discards_per_s", 1.0),
    Counter("rnr_nak_retry_err", "rnr_nak_retry_err"),
    Counter("local_ack_timeout_err", "local_ack_timeout_err_per_s", 1.0),
    Counter("roce_slow_restart", "roce_slow_restart_per_s", 1.0),
    Counter("carrier_changes", "carrier_changes"),
)


def _counters(port: Port, listed: bool, scene: Scene) -> Iterable[Finding]:
    part, base = port_part(port.device, port.port), port_key(port)
    moved = {name: scene.changes.get(f"{base}/{name}") for name in port.counters}
    told = {name: change for name, change in moved.items() if change is not None}
    fell = (told["link_downed"].by > 0) if "link_downed" in told else False
    care = Care.DRAIN if listed else Care.WATCH
    yield _rising("port_counters", part, told, _rows(fell), care, scene)
    yield _rising("port_errors", part, told, OTHERS, Care.WATCH, scene)
    yield from _odd(part, told)


def _rows(fell: bool) -> Sequence[Counter]:
    """A link that trains anew counts symbol errors: then they say nothing more."""
    return [row for row in PHYSICAL if not (fell and row.name == "symbol_error")]


def _rising(
    check: str, part: Part, told: Dict[str, Change], rows: Sequence[Counter], care: Care, scene: Scene
) -> Finding:
    known = [row for row in rows if row.name in told and not _at_start(told[row.name])]
    bad = [row for row in known if _too_many(told[row.name], row, scene)]
    if bad:
        words = ", ".join(f"{row.name} rose by {told[row.name].by}" for row in bad)
        worst = told[bad[0].name].by
        return failed(check, part, f"{part.subject}: {words} since the last look", care, worst, expected=0)
    if known:
        return passed(check, part, f"{part.subject} had no errors that count since the last look", 0, 0)
    return untold(check, part, f"no earlier look in this boot has counted the errors of {part.subject}")


def _at_start(change: Change) -> bool:
    """Nothing can be said: no earlier look, or a counter that stood at its ceiling before."""
    return change.move is Move.FIRST or (change.move is Move.CEILING and change.by == 0)


def _too_many(change: Change, row: Counter, scene: Scene) -> bool:
    most = scene.rules.limit(row.limit)
    return too_fast(change, most, row.per_s) if row.per_s else change.by > most


def _odd(part: Part, told: Dict[str, Change]) -> Iterable[Finding]:
    """Counters that cannot be trusted: findings of their own."""
    for check, move, words in (
        ("counter_ceiling", Move.CEILING, "stand at their ceiling: what happens there is not seen until a reset"),
        ("counter_backwards", Move.BACKWARDS, "went backwards: somebody has reset them, or they lie"),
    ):
        names = sorted(name for name, change in told.items() if change.move is move)
        if names:
            value = told[names[0]].now
            yield failed(check, part, f"counters of {part.subject} {words} ({', '.join(names)})", Care.WATCH, value)
        elif told:
            yield passed(check, part, f"the counters of {part.subject} count")
