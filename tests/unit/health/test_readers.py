"""The readers on whole healthy nodes of every kind, as the stand-in writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.health.host import boot_id, read_closely, read_host
from fleetctl.health.infiniband import read_ports
from fleetctl.health.kernel_log import read_kernel_log
from fleetctl.health.pci import read_pci
from tests.nvml import host_files, machine
from tests.nvml.machine import PciFunction
from tests.nvml.port_files import write_port
from tests.nvml.scenario import Node, function_of, healthy

PLATFORMS = ("a100-sxm", "a100-pcie", "h100-sxm", "h100-pcie", "h200", "b200", "gb200", "l40s")


def write(node: Node, folder: Path) -> tuple[str, str]:
    """The node's sys and proc; its compiled library is not wanted here."""
    sys, proc = folder / "sys", folder / "proc"
    host_files.write(node.host, sys, proc, 1000.0, node.driver)
    for function in (*node.others, *(function_of(gpu, node.platform) for gpu in node.gpus)):
        machine.write_pci(sys, function)
    for card in node.cards:
        home = machine.write_pci(sys, card.function)
        for port in card.ports:
            write_port(sys, home, card.device, port)
    return str(sys), str(proc)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_gpu_and_card_is_read_with_its_link_and_its_bridges(tmp_path: Path, platform: str) -> None:
    node = healthy(platform)
    sys, _ = write(node, tmp_path)
    expected: list[PciFunction] = [function_of(gpu, node.platform) for gpu in node.gpus]
    expected += [card.function for card in node.cards]

    found = {device.link.address: device for device in read_pci(sys) or ()}

    assert [d.link.address for d in found.values() if d.kind == "gpu"] == sorted(node.platform.gpus)
    assert {d.link.address for d in found.values() if d.kind == "nic"} == {c.function.link.address for c in node.cards}
    for function in expected:
        device = found[function.link.address]
        assert device.device_id == function.device_id
        assert [bridge.address for bridge in device.bridges] == [bridge.address for bridge in function.bridges]
        for link, end in zip((device.link, *device.bridges), (function.link, *function.bridges), strict=True):
            assert (f"{link.speed_gts} GT/s PCIe", link.width) == (end.speed, end.width)
            assert (f"{link.max_speed_gts} GT/s PCIe", link.max_width) == (end.max_speed, end.max_width)
        assert device.errors == {"correctable": 0, "nonfatal": 0, "fatal": 0}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_port_is_read_as_it_was_written(tmp_path: Path, platform: str) -> None:
    node = healthy(platform)
    sys, _ = write(node, tmp_path)
    written = {(card.device, port.number): (card, port) for card in node.cards for port in card.ports}

    found = read_ports(sys)

    assert found is not None
    assert {(port.device, port.port) for port in found} == set(written)
    for port in found:
        card, files = written[port.device, port.port]
        assert f"{port.rate_gbps:g} Gb/sec ({port.width}X {port.speed})" == files.rate
        assert (port.state, port.phys_state, port.pci) == ("ACTIVE", "LinkUp", card.function.link.address)
        assert port.link_layer == files.link_layer
        if files.link_layer == "Ethernet":
            assert (port.netdev, port.operstate) == (files.netdev, "up")
        assert port.unreadable == ()
        names = [name for name in port.counters if name != "carrier_changes"]
        assert len(names) == 10
        assert {name: (files.counters | files.hw_counters)[name] for name in names} == dict.fromkeys(names, 0)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_host_and_the_log_of_a_healthy_node_show_nothing_wrong(tmp_path: Path, platform: str) -> None:
    node = healthy(platform)
    sys, proc = write(node, tmp_path)
    (tmp_path / "kmsg").write_text(node.log.text(10_000.0))

    host = read_closely(read_host(sys, proc, str(tmp_path)), sys, proc)

    assert host.memory_bytes == node.host.memory_kib * 1024
    assert (host.edac_corrected, host.edac_uncorrected) == (0, 0)
    assert (host.clock_source, host.governors, host.stuck) == ("tsc", ("performance",), ())
    assert host.nvidia_devices == len(node.gpus)
    assert boot_id(proc) == node.host.boot_id
    assert read_kernel_log(str(tmp_path / "kmsg"), None, 256)[0] == ()
