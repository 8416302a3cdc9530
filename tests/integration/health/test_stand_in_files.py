"""The sysfs, proc and kernel log of a stand-in node look like those of a real one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.nvml.healthy_variants import HEALTHY
from tests.nvml.host_files import StuckProcess
from tests.nvml.kernel_log import USER, Log
from tests.nvml.platforms import PLATFORMS
from tests.nvml.scenario import MISSING, UNREADABLE, Paths, healthy, site_settings
from tests.nvml.sick_variants import SICK


def _text(path: Path) -> str:
    return path.read_text().strip()


@pytest.fixture(scope="module")
def healthy_paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Paths]:
    """One written node for each platform."""
    cluster = tmp_path_factory.mktemp("cluster")
    return {name: healthy(name, name).write(cluster) for name in PLATFORMS}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_each_platform_shows_its_gpus_on_pcie(healthy_paths: dict[str, Paths], platform: str) -> None:
    kind, devices = PLATFORMS[platform], healthy_paths[platform].sys / "bus/pci/devices"
    gpus = [
        device.name
        for device in devices.iterdir()
        if _text(device / "vendor") == "0x10de" and _text(device / "class").startswith("0x03")
    ]
    assert sorted(gpus) == sorted(kind.gpus)
    for address in gpus:
        assert int(_text(devices / address / "device"), 16) << 16 | 0x10DE == kind.device_id
        assert _text(devices / address / "current_link_width") == "16"
        assert re.fullmatch(r"[0-9.]+ GT/s PCIe", _text(devices / address / "max_link_speed"))
        assert "TOTAL_ERR_COR 0" in _text(devices / address / "aer_dev_correctable").splitlines()


@pytest.mark.parametrize("platform", PLATFORMS)
def test_each_device_lies_below_its_bridges(healthy_paths: dict[str, Paths], platform: str) -> None:
    devices = healthy_paths[platform].sys / "bus/pci/devices"
    for address in (*PLATFORMS[platform].gpus, *PLATFORMS[platform].cards):
        above = (devices / address).resolve().parent
        assert _text(above / "class") == "0x060400"
        while above.name[:3] != "pci":
            assert (devices / above.name).resolve() == above
            above = above.parent


@pytest.mark.parametrize("platform", PLATFORMS)
def test_each_platform_shows_its_ports(healthy_paths: dict[str, Paths], platform: str) -> None:
    kind, infiniband = PLATFORMS[platform], healthy_paths[platform].sys / "class/infiniband"
    assert sorted(one.name for one in infiniband.iterdir()) == [f"mlx5_{index}" for index in range(len(kind.cards))]
    for index, address in enumerate(kind.cards):
        port = infiniband / f"mlx5_{index}/ports/1"
        assert [_text(port / name) for name in ("state", "phys_state", "rate", "link_layer")] == [
            *("4: ACTIVE", "5: LinkUp", kind.rate),
            "Ethernet" if kind.ethernet else "InfiniBand",
        ]
        assert (infiniband / f"mlx5_{index}/device").resolve().name == address
        assert _text(port / "counters/link_downed") == _text(port / "hw_counters/packet_seq_err") == "0"
        (netdev,) = (infiniband / f"mlx5_{index}/device/net").iterdir()
        assert _text(healthy_paths[platform].sys / "class/net" / netdev.name / "operstate") == "up"


def test_a_card_and_a_gpu_share_their_switch(healthy_paths: dict[str, Paths]) -> None:
    devices = healthy_paths["h100-sxm"].sys / "bus/pci/devices"
    gpu, card = (devices / "0000:1b:00.0").resolve(), (devices / "0000:18:00.0").resolve()
    assert gpu.parent != card.parent
    assert gpu.parent.parent == card.parent.parent


def test_a_link_is_told_by_nvml_and_sysfs_alike(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.gpu(3).run_pcie_at(generation=1, width=8)
    node.gpu(2).bridges[1].run_at(3)
    devices = node.write(tmp_path).sys / "bus/pci/devices"
    assert "gpu.3.pcie_generation 1" in node.scenario().splitlines()
    for address in ("0000:61:00.0", "0000:5d:00.0"):
        assert _text(devices / address / "current_link_speed") == "2.5 GT/s PCIe"
        assert _text(devices / address / "current_link_width") == "8"
        assert _text(devices / address / "max_link_width") == "16"
    switch = (devices / "0000:4f:00.0").resolve().parent.parent  # above the card that shares it
    assert _text(switch / "current_link_speed") == "8.0 GT/s PCIe"


def test_a_gone_device_and_strange_counters(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.gpu(3).off_pcie = True
    node.card("mlx5_4").function.gone = True
    counters = node.port("mlx5_1").counters
    counters.update(symbol_error="N/A (no PMA)", link_downed=UNREADABLE, port_rcv_errors=MISSING)
    sys = node.write(tmp_path).sys
    assert not (sys / "bus/pci/devices/0000:61:00.0").exists()
    assert not (sys / "class/infiniband/mlx5_4").exists()
    written = sys / "class/infiniband/mlx5_1/ports/1/counters"
    assert _text(written / "symbol_error") == "N/A (no PMA)"
    assert not (written / "port_rcv_errors").exists()
    with pytest.raises(OSError, match="Input/output"):
        (written / "link_downed").read_bytes()


def test_the_host_is_written_as_described(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    node.host.edac["mc0"] = (3, 1)
    node.host.stuck = [StuckProcess(4242, "py) D thon", "Z")]
    paths = node.write(tmp_path)
    assert _text(paths.sys / "devices/system/edac/mc/mc0/ue_count") == "1"
    assert _text(paths.sys / "devices/system/cpu/cpu3/cpufreq/scaling_governor") == "performance"
    assert _text(paths.sys / "devices/system/clocksource/clocksource0/current_clocksource") == "tsc"
    assert _text(paths.proc / "sys/kernel/random/boot_id") == node.host.boot_id
    assert "tmpfs /dev/shm tmpfs" in _text(paths.proc / "mounts")
    assert (paths.proc / "4242/stat").read_text().startswith("4242 (py) D thon) Z 1 ")
    real = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert len((paths.proc / "4242/stat").read_text().rpartition(")")[2].split()) == len(real)
    assert [one.name for one in paths.proc.iterdir() if one.name.isdigit()] == ["4242"]


RECORD = re.compile(r"(?P<prefix>\d+),(?P<sequence>\d+),(?P<at>\d+),-;(?P<text>[ -~]*)")


def test_the_kernel_log_has_the_form_of_dev_kmsg() -> None:
    log = Log(first=7)
    log.xid("0000:1b:00.0", 79, "GPU has fallen off the bus.", pid="'<unknown>'", name="<unknown>", ago_s=10)
    log.xid("0000:1b:00", 119, "Timeout")
    log.sxid(3, "0000:05:00.0", 22, "Fatal, Link 30")
    log.fallen_off("0000:1b:00.0")
    log.line("a \\ b\tc é", facility=USER, level=6, ago_s=5000, keys={"SUBSYSTEM": "pci"})
    *records, key = log.text(1000.5).splitlines()
    assert [RECORD.fullmatch(record) is not None for record in records] == [True] * 5
    assert records[0] == (
        "3,7,990500000,-;NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    )
    assert records[1].endswith(";NVRM: Xid (PCI:0000:1b:00): 119, Timeout")
    assert records[2].endswith(";nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 00022, Fatal, Link 30")
    assert records[3].count(r"\x0a") == 2
    assert records[4] == r"14,11,0,-;a \x5c b\x09c \xc3\xa9"
    assert key == " SUBSYSTEM=pci"


def test_a_site_reads_the_files_of_its_node(tmp_path: Path) -> None:
    healthy("h100-sxm", "n7").write(tmp_path)
    for key, value in site_settings(tmp_path).items():
        for path in value if isinstance(value, list) else [value]:
            assert key in ("folder", "stuck") or Path(str(path).replace("%n", "n7")).exists()


def test_a_node_written_again_changes_but_keeps_what_others_put_there(tmp_path: Path) -> None:
    node = healthy("h100-sxm")
    paths = node.write(tmp_path)
    (paths.node / "spool").mkdir()
    (paths.shm / "left").write_text("by a job")
    node.cards.pop()
    node.log.fallen_off("0000:1b:00.0")
    assert node.write(tmp_path) == paths
    assert not (paths.sys / "class/infiniband/mlx5_7").exists()
    assert "fallen off the bus" in _text(paths.kmsg)
    assert sorted(one.name for one in paths.node.iterdir()) == [
        *("calls", "kmsg", "libnvidia-ml.so.1", "nvml", "proc", "shm", "spool", "sys", "tmp", "turns"),
    ]
    assert _text(paths.shm / "left") == "by a job"


@pytest.mark.parametrize("name", [*HEALTHY, *SICK])
def test_every_variant_differs_from_a_healthy_node_or_says_why_not(name: str) -> None:
    variant = HEALTHY.get(name) or SICK[name]
    changed, same = variant.node(), healthy(variant.platform)
    plain = name in {"pairs_with_12_of_18_links", "fabric_not_supported_on_a100", "driver_without_recovery_action"}
    plain |= name in {"links_past_the_last_are_invalid", "fabric_without_a_summary", "no_retired_pages_to_tell_of"}
    plain |= name == "neither_nvlink_nor_fabric"  # these are what a healthy node of their platform is anyway
    assert (changed == same) == plain
    assert bool(variant.words) == (name in SICK)


def test_a_variant_tells_which_words_a_reason_lacks() -> None:
    variant = SICK["infiniband_width_2x"]
    assert variant.words == ("mlx5_2", "2X|width|200")
    assert variant.lacks("fleetctl: port MLX5_2/1 runs at 2x") == []
    assert variant.lacks("fleetctl: port mlx5_1/1 is down") == ["mlx5_2", "2X|width|200"]
