"""Describes a node, healthy or sick, and writes it for the stand-in NVML and for the readers of sysfs, proc and kmsg.

    node = healthy("h100-sxm", name="n1")
    node.gpu(3).links[7].state = 0
    node.gpu(2).remap_pending = Code(3)                     # asking for it answers NVML code 3
    node.gpu(1).fabric_state = ByInit(2, 2, 3)              # "in progress" for the first two nvmlInits
    node.port("mlx5_0").rate = "200 Gb/sec (2X NDR)"
    node.log.xid("0000:1b:00", 79, "GPU has fallen off the bus.")
    node.hangs("nvmlDeviceGetFieldValues", gpu=5)
    paths = node.write(folder)                              # Paths(scenario, library, sys, proc, kmsg, ...)

Attributes of a Gpu and of a Link are the keys of fleetctl/health/readings.py. Unknown attributes are refused.
"""

from __future__ import annotations

import shutil
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.nvml import host_files, kernel_log, machine
from tests.nvml.build import build_library
from tests.nvml.gpus import NOT_SUPPORTED, ByCall, ByInit, Code, Gpu, Link, Process, Value, gpu_lines, word
from tests.nvml.machine import MISSING, UNREADABLE, PcieEnd, PciFunction
from tests.nvml.platforms import ALL_WELL, MIB, PLATFORMS, Platform
from tests.nvml.port_files import Port, port, write_port

__all__ = [
    "MISSING",
    "UNREADABLE",
    "ByCall",
    "ByInit",
    "Code",
    "Gpu",
    "Link",
    "Node",
    "Paths",
    "Port",
    "Process",
    "healthy",
]


@dataclass(slots=True)
class Card:
    """A network card: one InfiniBand or RoCE device with its ports."""

    device: str
    function: PciFunction
    ports: list[Port]


class Paths(NamedTuple):
    """Where a written node lies. `cluster` holds the library and `nodes/<name>/` of each node."""

    cluster: Path
    node: Path
    library: Path  # this node's own: lacks the symbols that the node's driver lacks
    scenario: Path
    sys: Path
    proc: Path
    kmsg: Path
    calls: Path
    shm: Path
    tmp: Path


def _paths(cluster: Path, node: Path, library: Path) -> Paths:
    named = [node / name for name in ("nvml", "sys", "proc", "kmsg", "calls", "shm", "tmp")]
    return Paths(cluster, node, library, *named)


@dataclass(slots=True)
class Node:
    """A node to write down. `without` names NVML symbols that its driver does not have."""

    name: str
    platform: Platform
    driver: str
    gpus: list[Gpu]
    cards: list[Card]
    others: list[PciFunction]  # NVSwitches, NVMe, a display
    host: host_files.HostFiles
    log: kernel_log.Log
    cuda: int = 12090
    without: tuple[str, ...] = ()
    pairs: dict[tuple[int, int], dict[str, Value]] = field(default_factory=dict)
    behaviours: dict[str, str] = field(default_factory=dict)
    uptime_s: float | None = None  # None: this machine's CLOCK_MONOTONIC, which the phases compare with

    def gpu(self, index: int) -> Gpu:
        """By NVML index."""
        return self.gpus[index]

    def card(self, device: str) -> Card:
        return next(card for card in self.cards if card.device == device)

    def port(self, device: str, number: int = 1) -> Port:
        return next(one for one in self.card(device).ports if one.number == number)

    def peer(self, first: int, second: int, *, p2p: Value = 0, topology: Value | None = None) -> None:
        """P2P status and topology level of a pair of GPUs."""
        low, high = sorted((first, second))
        values = self.pairs.setdefault((low, high), {})
        values["p2p"] = p2p
        if topology is not None:
            values["topology"] = topology

    def returns(self, call: str, code: int, *, gpu: int | None = None, first: int | None = None) -> None:
        """A call (`*`: any call on this GPU) answers this code; `first`: only so many times."""
        self._behave(call, f"code {code}", gpu, first)

    def sleeps(self, call: str, seconds: float, *, gpu: int | None = None, first: int | None = None) -> None:
        """A call takes this long, then answers as usual."""
        self._behave(call, f"sleep {seconds}", gpu, first)

    def hangs(
        self, call: str, *, gpu: int | None = None, first: int | None = None, uninterruptibly: bool = False
    ) -> None:
        """A call never comes back and is deaf to SIGTERM. `uninterruptibly`: its process is in state D, too."""
        self._behave(call, "hang_d" if uninterruptibly else "hang", gpu, first)

    def dies(self, call: str, *, gpu: int | None = None, first: int | None = None) -> None:
        """A call ends its process with a segmentation fault."""
        self._behave(call, "die", gpu, first)

    def _behave(self, call: str, what: str, gpu: int | None, first: int | None) -> None:
        key = f"call.{call}" if gpu is None else f"call.{call}@{gpu}"
        self.behaviours[key] = what if first is None else f"{what} first {first}"

    def write(self, cluster: Path) -> Paths:
        """`<cluster>/nodes/<name>/{nvml,libnvidia-ml.so.1,sys,proc,kmsg,calls,turns,shm,tmp}`.

        Written again, the node changes at once: what else lies there (spool/, what is in shm/ and tmp/) stays.
        """
        paths = self.write_nvml(cluster)
        uptime_s = time.monotonic() if self.uptime_s is None else self.uptime_s
        fresh = paths._replace(**{name: paths.node / f"{name}.new" for name in ("sys", "proc", "kmsg")})
        self._write_devices(fresh.sys)
        host_files.write(self.host, fresh.sys, fresh.proc, uptime_s, self.driver)
        fresh.kmsg.write_text(self.log.text(uptime_s), encoding="ascii")
        for new, old in ((fresh.sys, paths.sys), (fresh.proc, paths.proc)):
            if old.exists():
                old.rename(old.with_suffix(".old"))
            new.rename(old)
            shutil.rmtree(old.with_suffix(".old"), ignore_errors=True)
        fresh.kmsg.replace(paths.kmsg)
        return paths

    def write_nvml(self, cluster: Path) -> Paths:
        """What the library needs, only; counts of calls and of turns begin anew."""
        folder = cluster / "nodes" / self.name
        shutil.rmtree(folder / "turns", ignore_errors=True)
        for name in ("turns", "shm", "tmp"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name).chmod(0o777)
        build_library(cluster)
        paths = _paths(cluster, folder, build_library(folder, self.without))
        paths.calls.write_text("")
        paths.calls.chmod(0o666)
        fresh = folder / "nvml.new"
        fresh.write_text(self.scenario())
        fresh.replace(paths.scenario)
        return paths

    def scenario(self) -> str:
        """The text that stand_in.c reads."""
        lines = [f"count {len(self.gpus)}", f"driver {self.driver}", f"nvml 13.{self.driver}", f"cuda {self.cuda}"]
        lines.append(f"pair.p2p {word(0)}")
        for index, gpu in enumerate(self.gpus):
            lines += [f"gpu.{index}.{line}" for line in gpu_lines(gpu)]
            for other in range(index + 1, len(self.gpus)):
                same_socket = index * 2 // len(self.gpus) == other * 2 // len(self.gpus)
                values = {"topology": 40 if same_socket else 50, **self.pairs.get((index, other), {})}
                lines += [f"pair.{index}.{other}.{key} {word(value)}" for key, value in values.items()]
        lines += [f"{key} {what}" for key, what in self.behaviours.items()]
        return "\n".join(sorted(lines)) + "\n"

    def _write_devices(self, sys: Path) -> None:
        for function in self.others:
            if not function.gone:
                machine.write_pci(sys, function)
        for gpu in self.gpus:
            if not gpu.off_pcie:
                machine.write_pci(sys, function_of(gpu, self.platform))
        for card in self.cards:
            if not card.function.gone:
                folder = machine.write_pci(sys, card.function)
                for one in card.ports:
                    write_port(sys, folder, card.device, one)


def function_of(gpu: Gpu, platform: Platform) -> PciFunction:
    """The GPU as sysfs shows it: the same link as NVML tells, where NVML tells one."""
    now = gpu.pcie_generation if isinstance(gpu.pcie_generation, int) else platform.generation
    most = gpu.pcie_max_generation if isinstance(gpu.pcie_max_generation, int) else platform.generation
    width = gpu.pcie_width if isinstance(gpu.pcie_width, int) else 16
    most_width = gpu.pcie_max_width if isinstance(gpu.pcie_max_width, int) else 16
    link = PcieEnd(gpu.pci, machine.gts(now), width, machine.gts(most), most_width)
    return PciFunction(link, gpu.device_id, 0x030200, gpu.bridges, errors=gpu.pci_errors)


def healthy(platform: str, name: str = "n1") -> Node:
    """A healthy, idle node of one of platforms.PLATFORMS."""
    kind = PLATFORMS[platform]
    shared: dict[str, PcieEnd] = {}
    return Node(
        name=name,
        platform=kind,
        driver=kind.driver,
        gpus=[_gpu(kind, index, name, shared) for index in range(len(kind.gpus))],
        cards=[_card(kind, index, shared) for index in range(len(kind.cards))],
        others=_others(kind, shared),
        host=host_files.HostFiles(boot_id=str(uuid.uuid5(uuid.NAMESPACE_DNS, name))),
        log=kernel_log.boot(kind.driver),
    )


def _shared_bridges(address: str, generation: int, shared: dict[str, PcieEnd]) -> list[PcieEnd]:
    """A bridge above several devices is one object: slow for one, slow for all."""
    return [shared.setdefault(bridge.address, bridge) for bridge in machine.bridges_of(address, generation)]


def _gpu(kind: Platform, index: int, node: str, shared: dict[str, PcieEnd]) -> Gpu:
    gpu = Gpu(
        pci=kind.gpus[index],
        minor=index,
        uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}/{index}')}",
        serial=f"165322{sum(node.encode()):05d}{index:02d}",
        name=kind.product,
        device_id=kind.device_id,
        links=[_link(kind, number) for number in range(kind.links)],
        bridges=_shared_bridges(kind.gpus[index], kind.generation, shared),
        memory_total_bytes=kind.memory_mib * MIB,
        power_limit_mw=kind.power_w * 1000,
        pcie_generation=kind.generation,
        pcie_max_generation=kind.generation,
        pcie_gpu_max_generation=kind.generation,
        link_count=kind.links or NOT_SUPPORTED,
        link_end=kind.link_end,
        link_speed_mbps=kind.link_speed_mbps if kind.links else NOT_SUPPORTED,
        link_switches=kind.links if kind.switched else 0,
        link_peer_type=2 if kind.switched else 0,
    )
    if not kind.fabric:
        gpu.fabric_state = NOT_SUPPORTED
    if kind.blackwell:
        gpu.fabric_mask, gpu.fabric_summary = ALL_WELL, 1
    if kind.name == "gb200":
        gpu.fabric_clique, gpu.fabric_cluster = 32766, 0x5A
    if not kind.margin:
        gpu.temperature_margin_c = NOT_SUPPORTED
    if not kind.mig:
        gpu.mig_mode = NOT_SUPPORTED
    if not kind.recovery:
        gpu.fields[230] = Code(2)  # the driver is older than the field
    return gpu


def _link(kind: Platform, number: int) -> Link:
    link = Link(state=1 if number < kind.links_up else 0)
    if kind.blackwell:
        link.replays = link.recoveries = link.crc_errors = link.crc_data_errors = NOT_SUPPORTED
        link.receive_errors = link.integrity_errors = link.recovery_failed = link.recovery_events = 0
    return link


def _card(kind: Platform, index: int, shared: dict[str, PcieEnd]) -> Card:
    address = kind.cards[index]
    generation = min(kind.generation, 5)
    function = PciFunction(
        machine.end(address, generation), kind.card_id, 0x020700, _shared_bridges(address, generation, shared)
    )
    netdev = f"ens{index + 1}np0" if kind.ethernet else f"ibs{index + 1}"
    return Card(f"mlx5_{index}", function, [port(kind.rate, netdev, ethernet=kind.ethernet)])


def _others(kind: Platform, shared: dict[str, PcieEnd]) -> list[PciFunction]:
    """Devices that are neither GPUs nor cards: NVSwitches (NVIDIA's, too), two NVMe, a board controller's display."""
    count, device_id = kind.switches
    addresses = [f"0000:{5 + number:02x}:00.0" for number in range(count)]
    found = [
        PciFunction(machine.end(one, 3, 2), device_id, 0x068000, _shared_bridges(one, 5, shared)) for one in addresses
    ]
    for bus in ("0c", "0d"):
        address = f"0000:{bus}:00.0"
        found.append(PciFunction(machine.end(address, 4, 4), 0xA824144D, 0x010802, _shared_bridges(address, 5, shared)))
    found.append(
        PciFunction(machine.end("0000:0e:00.0", 1, 1), 0x20001A03, 0x030000, _shared_bridges("0000:0e:00.0", 5, shared))
    )
    return found


def site_settings(cluster: Path) -> dict[str, object]:
    """The part of a site.json with which every node of `cluster` reads its own files (`%n` is the node's name)."""
    node = f"{cluster}/nodes/%n"
    return {
        "library": f"{node}/libnvidia-ml.so.1",
        "sys": f"{node}/sys",
        "proc": f"{node}/proc",
        "kmsg": f"{node}/kmsg",
        "shm": f"{node}/shm",
        "tmp": [f"{node}/tmp"],
        "folder": f"{node}/spool",
        "stuck": f"{node}/stuck",
    }


def read_calls(paths: Paths) -> list[tuple[str, int | None]]:
    """NVML calls made so far: (name, index of the GPU or None)."""
    words = [line.split() for line in paths.calls.read_text().splitlines()]
    return [(name, None if index == "-" else int(index)) for name, index in words]
