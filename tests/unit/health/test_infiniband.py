"""Ports of InfiniBand and RoCE, read from small trees of sysfs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleetctl.health import files
from fleetctl.health.infiniband import Rate, parse_rate, parse_state, read_ports
from fleetctl.health.model import Port
from tests.unit.health.trees import COUNTERS, HW_COUNTERS, ib_port, link, put


def only(sys: Path) -> Port:
    ports = read_ports(str(sys))
    assert ports is not None
    (port,) = ports
    return port


def test_a_healthy_port_is_read_with_its_width_and_every_counter_that_is_judged(tmp_path: Path) -> None:
    ib_port(tmp_path, files={"counters/link_downed": "7"})
    link(tmp_path / "class/infiniband/mlx5_0/device", "../../../devices/pci0000:15/0000:15:01.0/0000:18:00.0")

    port = only(tmp_path)

    assert port[:9] == ("mlx5_0", 1, "InfiniBand", "ACTIVE", "LinkUp", 400.0, 4, "NDR", "0000:18:00.0")
    assert port.counters == {**dict.fromkeys((*COUNTERS, *HW_COUNTERS), 0), "link_downed": 7}
    assert port.unreadable == ()


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400 Gb/sec (4X NDR)", Rate(400.0, 4, "NDR")),
        ("200 Gb/sec (2X NDR)", Rate(200.0, 2, "NDR")),
        ("800 Gb/sec (4X XDR)", Rate(800.0, 4, "XDR")),
        ("2.5 Gb/sec (1X SDR)", Rate(2.5, 1, "SDR")),
        ("10 Gb/sec (4X)", Rate(10.0, 4, None)),
        ("56 Gb/sec (4X FDR)\n", Rate(56.0, 4, "FDR")),
        *((text, Rate()) for text in ("", "400", "400 Gb/sec", "nan Gb/sec (4X NDR)", "-1 Gb/sec (4X NDR)", "4X NDR")),
        *(
            (text, Rate())
            for text in ("400 Gb/sec (0X NDR)", "400 Gb/sec (99X NDR)", "1e9 Gb/sec (4X NDR)", "\x00" * 99)
        ),
        *(
            (text, Rate())
            for text in ("400 Gb/sec 4X NDR", "400 Gb/sec (X NDR)", "400 Mb/sec (4X NDR)", "400 Gb/sec (4X N D R)")
        ),
    ],
)
def test_a_rate_is_taken_apart_or_not_believed(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("4: ACTIVE", "ACTIVE"),
        ("1: DOWN", "DOWN"),
        ("5: ACTIVE_DEFER", "ACTIVE_DEFER"),
        ("4: PortConfigurationTraining", "PortConfigurationTraining"),
        ("7: Phy Test", "Phy Test"),
        *((text, None) for text in (None, "", "ACTIVE", "4:", "4: ", ": ACTIVE", "x: ACTIVE", "4: \x1b[31m")),
    ],
)
def test_a_state_is_its_word(text: str | None, word: str | None) -> None:
    assert parse_state(text) == word


@pytest.mark.parametrize(
    "text", ["N/A (no PMA)", "", "-1", "1.5", "0x10", "9" * 30, "\xb2", "7\n8", "x" * 10_000, "7" + " " * 5000]
)
def test_a_counter_that_says_nothing_is_named_and_never_zero(tmp_path: Path, text: str) -> None:
    ib_port(tmp_path, files={"counters/symbol_error": text})

    port = only(tmp_path)

    assert port.unreadable == ("symbol_error",)
    assert "symbol_error" not in port.counters
    assert len(port.counters) == 9


def test_a_counter_whose_read_fails_is_named_and_one_that_the_card_does_not_have_is_not(tmp_path: Path) -> None:
    folder = ib_port(tmp_path)
    (folder / "counters/link_downed").unlink()
    (folder / "counters/link_downed").mkdir()  # a read fails, here with EISDIR
    (folder / "hw_counters/roce_slow_restart").unlink()

    port = only(tmp_path)

    assert port.unreadable == ("link_downed",)
    assert "roce_slow_restart" not in port.counters


@pytest.mark.parametrize("name", ["state", "phys_state", "rate", "link_layer"])
@pytest.mark.parametrize("text", ["", "\udcff\udcfe", "nonsense", "4: ACTIVE" * 1000])
def test_nonsense_in_one_file_leaves_the_others_readable(tmp_path: Path, name: str, text: str) -> None:
    ib_port(tmp_path, files={name: text})

    port = only(tmp_path)

    values = {"state": port.state, "phys_state": port.phys_state, "rate": port.rate_gbps, "link_layer": port.link_layer}
    assert [key for key, value in values.items() if value is None] == [name]
    assert len(port.counters) == 10


def test_a_node_without_infiniband_has_no_ports(tmp_path: Path) -> None:
    assert read_ports(str(tmp_path)) == ()
    (tmp_path / "class/infiniband").mkdir(parents=True)
    assert read_ports(str(tmp_path)) == ()


def test_ports_that_cannot_be_listed_are_not_no_ports(tmp_path: Path) -> None:
    link(tmp_path / "class/infiniband", "infiniband")  # a loop

    assert read_ports(str(tmp_path)) is None


@pytest.mark.parametrize("what", ["a loop", "no ports folder", "a file", "names that are no numbers"])
def test_a_card_that_does_not_tell_its_ports_is_still_there(tmp_path: Path, what: str) -> None:
    card = tmp_path / "class/infiniband/mlx5_3"
    if what == "a loop":
        link(card, "mlx5_3")
    elif what == "a file":
        put(card / "ports", "1")
    elif what == "names that are no numbers":
        (card / "ports/one").mkdir(parents=True)
    else:
        card.mkdir(parents=True)

    port = only(tmp_path)

    assert (port.device, port.state, port.unreadable) == ("mlx5_3", None, ("ports",))


@pytest.mark.parametrize(
    ("skip", "left"),
    [
        ((), [("mlx5_0", 1), ("mlx5_0", 2), ("mlx5_1", 1)]),
        (("mlx5_0/2",), [("mlx5_0", 1), ("mlx5_1", 1)]),
        (("mlx5_0",), [("mlx5_1", 1)]),
        (("mlx5_1/1", "mlx5_0/1"), [("mlx5_0", 2)]),
        (("mlx5",), [("mlx5_0", 1), ("mlx5_0", 2), ("mlx5_1", 1)]),
    ],
)
def test_nothing_of_a_skipped_port_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skip: tuple[str, ...], left: list[tuple[str, int]]
) -> None:
    for device, number in (("mlx5_0", 1), ("mlx5_0", 2), ("mlx5_1", 1)):
        ib_port(tmp_path, device, number)
    opened: list[str] = []
    real = os.open

    def watch(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        opened.append(path if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}") + "/" + path)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", watch)
    ports = read_ports(str(tmp_path), skip)

    assert ports is not None
    assert [(port.device, port.port) for port in ports] == left
    touched = {tuple(path.split("/class/infiniband/")[1].split("/")[::2][:2]) for path in opened}
    assert touched == {(device, str(number)) for device, number in left}


def test_of_a_roce_port_its_own_interface_is_looked_at(tmp_path: Path) -> None:
    for number in (1, 2):
        ib_port(tmp_path, "rocep1", number, files={"link_layer": "Ethernet"})
        name = f"eth{number}"
        put(tmp_path / "class/infiniband/rocep1/device/net" / name / "x", "")
        put(tmp_path / "class/net" / name / "dev_port", str(number - 1))
        put(tmp_path / "class/net" / name / "operstate", "up" if number == 1 else "down")
        put(tmp_path / "class/net" / name / "carrier_changes", str(number * 2))

    ports = read_ports(str(tmp_path))

    assert ports is not None
    assert [(p.netdev, p.operstate, p.counters["carrier_changes"]) for p in ports] == [
        ("eth1", "up", 2),
        ("eth2", "down", 4),
    ]


def test_a_fifo_in_the_place_of_a_file_does_not_hold_the_reader(tmp_path: Path) -> None:
    folder = ib_port(tmp_path)
    (folder / "state").unlink()
    os.mkfifo(folder / "state")

    assert only(tmp_path).state is None


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    ib_port(tmp_path, files={"counters/symbol_error": "x" * files.PAGE_BYTES * 2})
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        read_ports(str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == len(before)
