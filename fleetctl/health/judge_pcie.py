"""PCIe links of GPUs, of network cards and of the bridges above them. Pure.

An idle GPU lowers the generation of its link, never the width. What a slot allows cannot be told from what it trained
to, so that a link closes a node only by a profile.
"""

from __future__ import annotations

import math
from typing import Dict, Iterable, List, Optional, Sequence

from fleetctl.health.deltas import gpu_key, too_fast
from fleetctl.health.findings import (
    NODE,
    Findings,
    Part,
    Scene,
    failed,
    gpu_part,
    number,
    passed,
    plain,
    unread,
    untold,
)
from fleetctl.health.model import Care, Finding, Gpu, Move, PciDevice, PciLink

# PCI Express Base Specification: GT/s of each generation.
SPEEDS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
# DCGM, dcgm_health_structs and DcgmHealthWatch: replays that are fine, by generation, per lane and minute.
_REPLAYS = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}
_LANES = 16
_IDLE = 1  # nvmlClocksEventReasonGpuIdle


def generation_of(speed_gts: Optional[float]) -> Optional[int]:
    """5 for 32 GT/s; None where no generation has this speed."""
    return next((generation for generation, speed in SPEEDS.items() if speed == speed_gts), None)


def judge_pcie(gpu: Gpu, scene: Scene) -> Findings:
    """The link of one GPU, from sysfs where that tells, else from NVML."""
    device = device_of(gpu, scene.readings.devices)
    return (
        _width(gpu, device, scene),
        _generation(gpu, device, scene),
        *_replays(gpu, device, scene),
        *_above(gpu, device, scene),
    )


def device_of(gpu: Gpu, devices: Optional[Sequence[PciDevice]]) -> Optional[PciDevice]:
    """The GPU as sysfs shows it."""
    return next((one for one in devices or () if one.kind == "gpu" and one.link.address == gpu.pci), None)


def _width(gpu: Gpu, device: Optional[PciDevice], scene: Scene) -> Finding:
    part = gpu_part(gpu)
    width = _first(device.link.width if device else None, number(gpu.reads.get("pcie_width")))
    if width is None:
        return unread("pcie_width", gpu, "the PCIe width", gpu.reads.get("pcie_width"))
    wanted = scene.profile.pcie_width
    possible = wanted or _possible_width(gpu, device)
    if possible is None or width >= possible:
        return passed("pcie_width", part, f"{part.subject} has PCIe x{plain(width)}", width, possible, "lanes")
    words = f"{part.subject} runs at PCIe x{plain(width)}, x{plain(possible)} is expected"
    care = Care.DRAIN if wanted else Care.WATCH
    return failed("pcie_width", part, words, care, width, possible, "lanes")


def _possible_width(gpu: Gpu, device: Optional[PciDevice]) -> Optional[float]:
    """The most that card and slot both have."""
    ends = [number(gpu.reads.get("pcie_max_width"))]
    if device is not None:
        ends += [device.link.max_width, *(bridge.max_width for bridge in device.bridges[:1])]
    known = [end for end in ends if end]
    return min(known) if known else None


def _first(*values: Optional[float]) -> Optional[float]:
    return next((value for value in values if value), None)  # 0 lanes and generation 0 are nonsense


def _generation(gpu: Gpu, device: Optional[PciDevice], scene: Scene) -> Finding:
    part, wanted = gpu_part(gpu), scene.profile.pcie_generation
    now = _first(generation_of(device.link.speed_gts) if device else None, number(gpu.reads.get("pcie_generation")))
    most = _first(number(gpu.reads.get("pcie_max_generation")))
    if now is None and most is None:
        return unread("pcie_generation", gpu, "the PCIe generation", gpu.reads.get("pcie_generation"))
    if wanted and most is not None and most < wanted:
        words = f"{part.subject} can run at PCIe generation {plain(most)} only, {wanted} is expected"
        return failed("pcie_generation", part, words, Care.DRAIN, most, wanted)
    expected = wanted or most
    if now is None or expected is None or now >= expected:
        value = now if now is not None else most
        return passed(
            "pcie_generation", part, f"{part.subject} has PCIe generation {plain(value or 0)}", value, expected
        )
    words = f"{part.subject} runs at PCIe generation {plain(now)}, {plain(expected)} is expected"
    if _busy(gpu):
        return failed("pcie_generation", part, f"{words}, and it is busy", Care.WATCH, now, expected)
    return passed("pcie_generation", part, f"{words} under load: it may be idle", now, expected)


def _busy(gpu: Gpu) -> bool:
    """At full speed with a process on it, and not idle: then the link should be, too."""
    full_speed = number(gpu.reads.get("performance_state")) == 0
    reasons = number(gpu.reads.get("clock_reasons"))
    return full_speed and bool(gpu.processes) and reasons is not None and not int(reasons) & _IDLE


def _replays(gpu: Gpu, device: Optional[PciDevice], scene: Scene) -> Findings:
    part, read = gpu_part(gpu), gpu.reads.get("pcie_replays")
    change = scene.changes.get(f"{gpu_key(gpu)}/pcie_replays")
    if change is None:
        return (unread("pcie_replays", gpu, "the count of PCIe replays", read),)
    if change.move is Move.FIRST:
        return (
            untold("pcie_replays", part, f"no earlier look in this boot has counted the replays of {part.subject}"),
        )
    speed = device.link.max_speed_gts if device else None
    generation = scene.profile.pcie_generation or generation_of(speed) or max(_REPLAYS)
    lanes = scene.profile.pcie_width or _LANES
    most = math.ceil(_REPLAYS.get(generation, _REPLAYS[6]) * lanes) * scene.rules.limit("pcie_replays")
    words = f"{part.subject} had {change.by} PCIe replays in {_span(change.over_s)}"
    if too_fast(change, most, 60.0):
        words += f", more than {plain(most)} in a minute"
        return (failed("pcie_replays", part, words, Care.WATCH, change.by, most, "per minute"),)
    return (passed("pcie_replays", part, words, change.by, most, "per minute"),)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _above(gpu: Gpu, device: Optional[PciDevice], scene: Scene) -> Findings:
    """The bridges that the profile names, by width: their speed may idle along with the GPU."""
    if device is None and scene.profile.nic_links:
        return (
            untold("pcie_upstream", gpu_part(gpu), f"the PCIe bridges above {gpu_part(gpu).subject} were not read"),
        )
    links = [] if device is None else [link for link in device.bridges if link.address in scene.profile.nic_links]
    if not links:
        return ()
    bad = [link for link in links if link.width and link.width < scene.profile.nic_links[link.address][1]]
    part = gpu_part(gpu)
    if bad:
        wanted = scene.profile.nic_links[bad[0].address][1]
        words = f"PCIe bridge {bad[0].address} above {part.subject} runs at x{bad[0].width}, x{wanted} is expected"
        return (failed("pcie_upstream", part, words, Care.DRAIN, bad[0].width, wanted, "lanes"),)
    if any(not link.width for link in links):
        return (untold("pcie_upstream", part, f"the width of a PCIe bridge above {part.subject} cannot be read"),)
    return (passed("pcie_upstream", part, f"the PCIe bridges above {part.subject} have their width"),)


def judge_cards(scene: Scene) -> Findings:
    """Network cards and the bridges above them against the learned speeds and widths."""
    devices = scene.readings.devices
    if not scene.profile.nic_links:
        return ()
    if devices is None:
        return (untold("nic_pcie", NODE, "the network cards on PCIe were not read", Care.WATCH),)
    seen: Dict[str, PciLink] = {}
    for device in devices:
        for link in (device.link, *device.bridges) if device.kind == "nic" else ():
            seen.setdefault(link.address, link)
    shown = {link.address for device in devices for link in (device.link, *device.bridges)}
    return tuple(_cards(seen, shown, scene))


def _cards(seen: Dict[str, PciLink], shown: Iterable[str], scene: Scene) -> Iterable[Finding]:
    """Those that are not there are one finding: after a card was moved, or with the profile of another kind of node,
    there are dozens."""
    for address, (gts, width) in scene.profile.nic_links.items():
        if address in seen:
            yield _card(Part(f"PCIe device {address}", f"pci/{address}"), seen[address], gts, width)
    gone = sorted(set(scene.profile.nic_links) - set(seen) - set(shown))
    if gone:
        more = f" and {len(gone) - 1} more of the profile are" if len(gone) > 1 else " of the profile is"
        words = f"PCIe device {gone[0]}{more} not there: was it learned on another kind of node?"
        yield untold("nic_pcie", NODE, words, Care.WATCH)


def _card(part: Part, link: PciLink, gts: float, width: int) -> Finding:
    wanted = f"{plain(gts)} GT/s x{width}"
    if link.speed_gts is None or link.width is None:
        return untold(
            "nic_pcie", part, f"speed or width of {part.subject} cannot be read, {wanted} is expected", Care.WATCH
        )
    now = f"{plain(link.speed_gts)} GT/s x{link.width}"
    if link.speed_gts < gts or link.width < width:
        words = f"{part.subject} runs at {now}, {wanted} is expected"
        return failed("nic_pcie", part, words, Care.DRAIN, now, wanted)
    return passed("nic_pcie", part, f"{part.subject} runs at {now}", now, wanted)


def judge_aer(scene: Scene) -> Findings:
    """PCIe errors that devices and kernel counted since the last look: one finding for each device."""
    devices = scene.readings.devices
    if devices is None:
        return (untold("pcie_aer", NODE, "the devices on PCIe were not read"),)
    return tuple(_aer(device, scene) for device in devices if device.errors)


def _aer(device: PciDevice, scene: Scene) -> Finding:
    address = device.link.address
    part = Part(f"{device.kind} at {address}", f"pci/{address}")
    moved = {kind: scene.changes.get(f"pci/{address}/{kind}") for kind in device.errors}
    known = {kind: change for kind, change in moved.items() if change and change.move is not Move.FIRST}
    bad: List[str] = []
    for kind, change in known.items():
        per_minute = kind == "correctable"
        most = scene.rules.limit("aer_correctable_per_min" if per_minute else f"aer_{kind}") if kind in _KINDS else 0
        if too_fast(change, most, 60.0) if per_minute else change.by > most:
            bad.append(f"{change.by} {kind} PCIe errors")
    if bad:
        words = f"{part.subject} had {', '.join(bad)} since the last look"
        return failed("pcie_aer", part, words, Care.WATCH, expected=0)
    if known:
        return passed("pcie_aer", part, f"{part.subject} had no PCIe errors that count", 0, 0)
    return untold("pcie_aer", part, f"no earlier look in this boot has counted the PCIe errors of {part.subject}")


_KINDS = frozenset({"correctable", "nonfatal", "fatal"})
