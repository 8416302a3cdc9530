"""GPUs, cards and disks on PCIe with the bridges above them, read from small trees of sysfs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetctl.health.model import PciDevice, PciLink
from fleetctl.health.pci import gpu_addresses, parse_speed, parse_width, read_pci
from tests.unit.health.trees import link, pci_function, put

H100, SWITCH, CX7, SSD = 0x233010DE, 0x22A310DE, 0x102115B3, 0xA824144D


def devices(sys: Path) -> dict[str, PciDevice]:
    found = read_pci(str(sys))
    assert found is not None
    return {device.link.address: device for device in found}


def test_a_gpu_is_read_with_its_bridges_nearest_first(tmp_path: Path) -> None:
    way = "0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:1b:00.0"
    pci_function(tmp_path, "0000:15:01.0", 0x352A8086, 0x060400)
    pci_function(tmp_path, "0000:15:01.0/0000:16:00.0", 0xC0301000, 0x060400, widths=("8", "16"))
    pci_function(tmp_path, "0000:15:01.0/0000:16:00.0/0000:17:01.0", 0xC0301000, 0x060400)
    pci_function(tmp_path, way, H100, speeds=("2.5 GT/s PCIe", "32.0 GT/s PCIe"))

    (gpu,) = devices(tmp_path).values()

    assert (gpu.kind, gpu.device_id) == ("gpu", H100)
    assert gpu.link == PciLink("0000:1b:00.0", 2.5, 16, 32.0, 16)
    assert [bridge.address for bridge in gpu.bridges] == ["0000:17:01.0", "0000:16:00.0", "0000:15:01.0"]
    assert [bridge.width for bridge in gpu.bridges] == [16, 8, 16]


def test_errors_are_the_totals_of_each_kind(tmp_path: Path) -> None:
    home = pci_function(tmp_path, "0000:1b:00.0", H100)
    put(home / "aer_dev_correctable", "RxErr 2\nBadTLP 1\nTOTAL_ERR_COR 3")
    put(home / "aer_dev_nonfatal", "Undefined 0\nTOTAL_ERR_NONFATAL 0")
    put(home / "aer_dev_fatal", "TOTAL_ERR_FATAL many")

    assert devices(tmp_path)["0000:1b:00.0"].errors == {"correctable": 3, "nonfatal": 0}


@pytest.mark.parametrize(
    ("identity", "kind", "is_gpu"),
    [
        (H100, 0x030200, True),
        (H100, 0x030000, True),
        (SWITCH, 0x068000, False),
        (0x10DE10DE, 0x040300, False),  # the sound device of a graphics card
        (0x20001A03, 0x030000, False),  # the display of a BMC
    ],
)
def test_only_nvidias_display_devices_are_gpus(tmp_path: Path, identity: int, kind: int, is_gpu: bool) -> None:
    pci_function(tmp_path, "0000:1b:00.0", identity, kind)

    assert gpu_addresses(str(tmp_path)) == (("0000:1b:00.0",) if is_gpu else ())
    assert list(devices(tmp_path)) == (["0000:1b:00.0"] if is_gpu else [])


def test_cards_and_disks_are_found_by_what_they_do(tmp_path: Path) -> None:
    for address, identity in (
        ("0000:18:00.0", CX7),
        ("0000:19:00.0", 0xEFA11D0F),
        ("0000:1a:00.0", CX7),
        ("0000:1c:00.0", 0x15218086),
        ("0000:02:00.0", SSD),
    ):
        home = pci_function(tmp_path, address, identity, 0x020700)
        for name, kind in (("infiniband", "0000:18:00.0 0000:19:00.0"), ("net", "0000:1a:00.0 0000:1c:00.0")):
            if address in kind:
                link(tmp_path / "class" / name / f"x{address[5:7]}" / "device", str(home))
    link(tmp_path / "class/nvme/nvme0/device", str(tmp_path / "devices/pci0000:15/0000:02:00.0"))
    link(tmp_path / "class/nvme/nvme1/device", "../../nvme-fabrics/ctl")
    put(tmp_path / "class/net/lo/operstate", "unknown")

    found = {address: device.kind for address, device in devices(tmp_path).items()}

    # A card of another make is looked at only where it carries RDMA.
    expected = {"0000:02:00.0": "nvme", "0000:18:00.0": "nic", "0000:19:00.0": "nic", "0000:1a:00.0": "nic"}
    assert found == expected
    assert list(found) == sorted(expected)


def test_virtual_functions_are_no_devices_of_their_own(tmp_path: Path) -> None:
    pci_function(tmp_path, "0000:18:00.0", CX7, 0x020700)
    for address, identity in (("0000:18:00.1", CX7), ("0000:1b:00.4", H100)):
        home = pci_function(tmp_path, address, identity, 0x030200)
        link(home / "physfn", "../0000:18:00.0")
    for address in ("0000:18:00.0", "0000:18:00.1"):
        link(tmp_path / f"class/infiniband/mlx5_{address[-1]}/device", f"../../../{address}")

    assert list(devices(tmp_path)) == ["0000:18:00.0"]


def test_domains_may_have_more_than_four_digits(tmp_path: Path) -> None:
    for address in ("10000:e1:00.0", "0008:01:00.0", "0000:1b:00.0"):
        pci_function(tmp_path, address, H100)

    assert list(devices(tmp_path)) == ["0000:1b:00.0", "0008:01:00.0", "10000:e1:00.0"]


@pytest.mark.parametrize("name", ["vendor", "0000:1B:00.0", "0000:1b:00.8", "000:1b:00.0", "0000:1b:00", "../x", "é"])
def test_what_is_no_address_is_no_device(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "bus/pci/devices" / name.replace("/", "_")
    put(folder / "vendor", "0x10de")
    put(folder / "class", "0x030200")

    assert read_pci(str(tmp_path)) == ()


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        ("32.0 GT/s PCIe", 32.0),
        ("2.5 GT/s PCIe", 2.5),
        ("8 GT/s", 8.0),
        ("64.0 GT/s PCIe", 64.0),
        *((text, None) for text in (None, "", "Unknown", "Unknown speed", "nan GT/s", "inf GT/s", "0.0 GT/s PCIe")),
        *((text, None) for text in ("-8 GT/s", "1e400 GT/s", "9999 GT/s", "32.0", "\x00" * 50, "32.0GT/s")),
    ],
)
def test_a_speed_is_believed_or_unknown(text: str | None, speed: float | None) -> None:
    assert parse_speed(text) == speed


@pytest.mark.parametrize(
    ("text", "width"),
    [("1", 1), ("8", 8), ("16", 16), ("32", 32), *((text, None) for text in (None, "", "0", "63", "255", "x16", "-1"))],
)
def test_a_width_is_believed_or_unknown(text: str | None, width: int | None) -> None:
    assert parse_width(text) == width


def test_a_gpu_that_fell_off_the_bus_is_still_shown_without_a_link(tmp_path: Path) -> None:
    pci_function(tmp_path, "0000:1b:00.0", H100, speeds=("Unknown", "Unknown"), widths=("63", "255"))

    assert devices(tmp_path)["0000:1b:00.0"].link == PciLink("0000:1b:00.0", None, None, None, None)


def test_files_that_are_missing_or_unreadable_leave_the_device(tmp_path: Path) -> None:
    home = pci_function(tmp_path, "0000:1b:00.0", H100)
    for name in ("current_link_speed", "current_link_width", "max_link_speed", "device"):
        (home / name).unlink()
    (home / "max_link_speed").mkdir()

    gpu = devices(tmp_path)["0000:1b:00.0"]

    assert gpu.link == PciLink("0000:1b:00.0", None, None, None, 16)
    assert (gpu.device_id, gpu.errors) == (None, {})


def test_loops_of_links_end(tmp_path: Path) -> None:
    link(tmp_path / "bus/pci/devices/0000:1b:00.0", "0000:1b:00.0")
    link(tmp_path / "class/infiniband/mlx5_0", "mlx5_0")
    link(tmp_path / "class/nvme", "nvme")

    assert read_pci(str(tmp_path)) == ()


def test_no_tree_is_no_devices_and_an_unreadable_one_is_unknown(tmp_path: Path) -> None:
    assert read_pci(str(tmp_path)) == ()
    assert gpu_addresses(str(tmp_path)) == ()
    put(tmp_path / "bus/pci/devices", "")
    assert read_pci(str(tmp_path)) is None
    assert gpu_addresses(str(tmp_path)) is None


def test_a_shared_bridge_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pci_function(tmp_path, "0000:15:01.0", 0x352A8086, 0x060400)
    for bus in ("1b", "1c", "1d"):
        pci_function(tmp_path, f"0000:15:01.0/0000:{bus}:00.0", H100)
    opened: list[str] = []
    real = os.open

    def watch(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        opened.append(path)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", watch)

    assert [len(device.bridges) for device in devices(tmp_path).values()] == [1, 1, 1]
    assert sum("0000:15:01.0" in path for path in opened) == 5  # its vendor, when GPUs are looked for, and its link
