"""Readings of healthy nodes, made by hand, and the means to make them sick: no library, no files of a node."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import fleetctl.health
from fleetctl.health.decide import closes
from fleetctl.health.deltas import counters_of
from fleetctl.health.judge import judge
from fleetctl.health.model import (
    Answer,
    Asked,
    Baseline,
    Finding,
    Gpu,
    Host,
    Nvml,
    Outcome,
    PciDevice,
    PciLink,
    PeerToPeer,
    Phase,
    Port,
    Read,
    Readings,
)
from fleetctl.health.profile import BUILT_IN, device_ids, load_profile, profile_for
from fleetctl.health.readings import MORE
from fleetctl.health.rules import Rules
from fleetctl.health.wanted import Profile

PLATFORMS = Path(fleetctl.health.__file__).parent / "platforms"
PROFILES = tuple(load_profile((PLATFORMS / f"{name}.json").read_text()) for name in BUILT_IN)
NOT_SUPPORTED = 3
GIB = 1 << 30


class Kind(NamedTuple):
    """A kind of node; `up` of `links` NVLinks are up on each GPU."""

    device_id: int
    gpus: int = 8
    links: int = 18
    up: int = 18
    generation: int = 5
    memory_mib: int = 81559
    fabric: bool = True
    recovery: bool = True
    blackwell: bool = False
    ports: int = 8


KINDS = {
    "a100-sxm": Kind(0x20B210DE, links=12, up=12, generation=4, memory_mib=81920, fabric=False, recovery=False),
    "a100-pcie": Kind(0x20B510DE, links=12, up=0, generation=4, memory_mib=81920, fabric=False, recovery=False),
    "h100-sxm": Kind(0x233010DE),
    "h100-pcie": Kind(0x233110DE, up=12, fabric=False, ports=2),
    "h200": Kind(0x233510DE, memory_mib=143771),
    "b200": Kind(0x290110DE, memory_mib=183359, blackwell=True),
    "gb200": Kind(0x294110DE, gpus=4, generation=6, memory_mib=189471, blackwell=True, ports=4),
    "l40s": Kind(0x26B910DE, links=0, up=0, generation=4, memory_mib=46068, fabric=False, recovery=False, ports=1),
}


def ok(values: dict[str, Any]) -> dict[str, Read]:
    return {key: Read(value) for key, value in values.items()}


def code(number: int) -> Read:
    return Read(None, number)


def pci(index: int) -> str:
    return f"0000:{0x1B + 8 * index:02x}:00.0"


def _reads(kind: Kind) -> dict[str, Read]:
    reads = ok(
        {
            **dict.fromkeys(("ecc_corrected_volatile", "ecc_uncorrected_volatile"), 0),
            **dict.fromkeys(("ecc_corrected_aggregate", "ecc_uncorrected_aggregate"), 7),
            **dict.fromkeys(("sram_threshold", "sram_uncorrected", "remap_corrected", "remap_uncorrected"), 0),
            **dict.fromkeys(("remap_pending", "remap_failure", "pcie_replays", "recovery_action", "mig_mode"), 0),
            "ecc_mode": 1,
            "ecc_pending": 1,
            "link_count": kind.links,
            "clock_reasons": 1,
            "memory_total_bytes": kind.memory_mib << 20,
            "memory_used_bytes": 5 << 20,
            "fabric_state": 3,
            "fabric_status": 0,
            "fabric_mask": 2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8 if kind.blackwell else 0,
            "fabric_summary": 1 if kind.blackwell else 0,
            "energy_mj": 123456,
            "temperature_margin_c": 40,
            "name": "NVIDIA GPU",
            "serial": "123",
            "persistence": 1,
            "pcie_generation": kind.generation,
            "pcie_width": 16,
            "pcie_max_generation": kind.generation,
            "pcie_max_width": 16,
            "temperature_c": 33,
            "power_mw": 70000,
            "power_limit_mw": 700000,
            "performance_state": 0,
        }
    )
    without = ["retired_pages", "retired_pending"]
    without += [] if kind.recovery else ["recovery_action", "temperature_margin_c"]
    without += [] if kind.fabric else ["fabric_state", "fabric_status", "fabric_mask", "fabric_summary"]
    without += [] if kind.links else ["link_count"]
    return {**reads, **dict.fromkeys(without, code(NOT_SUPPORTED))}


def _link(kind: Kind, index: int) -> dict[str, Read]:
    old, new = ("replays", "recoveries", "crc_errors"), ("receive_errors", "integrity_errors", "recovery_failed")
    zero, absent = (new, old) if kind.blackwell else (old, new)
    state = {"state": Read(1 if index < kind.up else 0)}
    return {**state, **dict.fromkeys(zero, Read(0)), **dict.fromkeys(absent, code(NOT_SUPPORTED))}


def pcie(address: str, gts: float, width: int = 16) -> PciLink:
    return PciLink(address, gts, width, gts, width)


def _device(what: str, address: str, gts: float, device_id: int) -> PciDevice:
    number = int(address[5:7], 16) // 8
    bridges = (pcie(f"0000:{number:02x}:01.0", gts), pcie(f"0000:{number:02x}:02.0", gts))
    return PciDevice(what, pcie(address, gts), device_id, bridges, {"correctable": 0, "nonfatal": 0, "fatal": 0})


COUNTERS = ("link_downed", "symbol_error", "port_rcv_errors", "local_link_integrity_errors", "rnr_nak_retry_err")


def healthy(name: str = "h100-sxm") -> Readings:
    """A node an hour after its start, with nobody on it, everything read."""
    kind = KINDS[name]
    links = tuple(_link(kind, index) for index in range(kind.links))
    gpus = tuple(
        Gpu(index, 0, pci(index), index, f"GPU-{index}", kind.device_id, _reads(kind), links, ())
        for index in range(kind.gpus)
    )
    pairs = [(a, b) for a in range(kind.gpus) for b in range(a + 1, kind.gpus)] if kind.up else []
    peers = tuple(PeerToPeer(a, b, Read(0)) for a, b in pairs)
    gts = {4: 16.0, 5: 32.0, 6: 64.0}[kind.generation]
    cards = [f"0000:{0x18 + 8 * index:02x}:00.0" for index in range(kind.ports)]
    return Readings(
        node="n1",
        boot_id="boot-1",
        at=1_000_000.0,
        uptime_s=3600.0,
        nvml=Nvml(Answer.ANSWERED, driver="570.133.20", gpus=gpus, peers=peers, took_s=0.2),
        devices=(
            *(_device("gpu", gpu.pci or "", gts, kind.device_id) for gpu in gpus),
            *(_device("nic", card, 32.0, 0x102115B3) for card in cards),
        ),
        ports=tuple(
            Port(
                f"mlx5_{index}", 1, "InfiniBand", "ACTIVE", "LinkUp", 400.0, 4, "NDR", card,
                counters=dict.fromkeys(COUNTERS, 0),
            )
            for index, card in enumerate(cards)
        ),
        events=(),
        host=Host(
            memory_bytes=2048 * GIB, shm_bytes=1024 * GIB, shm_free_bytes=1024 * GIB, edac_corrected=0,
            edac_uncorrected=0, clock_synchronised=True, clock_source="tsc", governors=("performance",) * 4,
            nvidia_devices=kind.gpus,
        ),
    )  # fmt: skip


def in_prolog(readings: Readings) -> Readings:
    """The same without what only the slower phases ask."""
    nvml = readings.nvml
    assert nvml is not None
    gpus = tuple(
        gpu._replace(reads={key: read for key, read in gpu.reads.items() if key not in MORE}) for gpu in nvml.gpus
    )
    return readings._replace(nvml=nvml._replace(gpus=gpus))


def with_nvml(readings: Readings, **values: Any) -> Readings:
    assert readings.nvml is not None
    return readings._replace(nvml=readings.nvml._replace(**values))


def with_gpu(readings: Readings, index: int, **values: Any) -> Readings:
    assert readings.nvml is not None
    gpus = list(readings.nvml.gpus)
    gpus[index] = gpus[index]._replace(**values)
    return with_nvml(readings, gpus=tuple(gpus))


def with_reads(readings: Readings, index: int, **values: Any) -> Readings:
    """Values of GPU `index`; a Read stands as it is, None takes the key away."""
    assert readings.nvml is not None
    reads = dict(readings.nvml.gpus[index].reads)
    for key, value in values.items():
        reads[key] = value if isinstance(value, Read) else Read(value)
    return with_gpu(
        readings, index, reads={key: read for key, read in reads.items() if read.value is not None or read.code}
    )


def with_links(readings: Readings, index: int, numbers: Iterable[int], **values: Any) -> Readings:
    """Values of these NVLinks of GPU `index`."""
    assert readings.nvml is not None
    links = [dict(link) for link in readings.nvml.gpus[index].links]
    for number in numbers:
        links[number].update({key: value if isinstance(value, Read) else Read(value) for key, value in values.items()})
    return with_gpu(readings, index, links=tuple(links))


def with_port(readings: Readings, index: int, **values: Any) -> Readings:
    ports = list(readings.ports or ())
    ports[index] = ports[index]._replace(**values)
    return readings._replace(ports=tuple(ports))


def with_host(readings: Readings, **values: Any) -> Readings:
    return readings._replace(host=(readings.host or Host())._replace(**values))


def with_device(readings: Readings, address: str, **values: Any) -> Readings:
    """The link of the PCIe device or bridge at this address changed."""

    def link(one: PciLink) -> PciLink:
        return one._replace(**values) if one.address == address else one

    devices = tuple(
        device._replace(link=link(device.link), bridges=tuple(link(bridge) for bridge in device.bridges))
        for device in readings.devices or ()
    )
    return readings._replace(devices=devices)


def baseline_of(readings: Readings) -> Baseline:
    """What a look leaves for a later one in this boot."""
    return Baseline(readings.boot_id, readings.at, counters_of(readings))


def later(readings: Readings, seconds: float = 600.0) -> tuple[Readings, Baseline]:
    """The same node some time later, and the baseline that it left at first."""
    after = readings._replace(at=readings.at + seconds, uptime_s=readings.uptime_s + seconds)
    return after, baseline_of(readings)


def built_in(readings: Readings) -> Profile | None:
    return profile_for(device_ids(readings), PROFILES, None)


def judged(
    readings: Readings,
    profile: Profile | None = None,
    phase: Phase = Phase.PERIODIC,
    gpus: tuple[int, ...] | None = None,
    before: Baseline | None = None,
    rules: Rules | None = None,
) -> tuple[Finding, ...]:
    """By the built-in profile where none is given."""
    return judge(readings, profile or built_in(readings), Asked(phase, gpus, "1"), before, rules or Rules())


def of(findings: Iterable[Finding], check: str) -> list[Finding]:
    return [finding for finding in findings if finding.check == check]


def one(findings: Iterable[Finding], check: str) -> Finding:
    """The only finding of this check that did not pass."""
    bad = [finding for finding in of(findings, check) if finding.outcome is not Outcome.PASS]
    assert len(bad) == 1, bad
    return bad[0]


def failures(findings: Iterable[Finding]) -> list[str]:
    return [finding.words for finding in findings if finding.outcome is Outcome.FAIL]


def closing(findings: Iterable[Finding]) -> list[str]:
    """Checks whose finding keeps jobs away."""
    return [finding.check for finding in findings if closes(finding)]
