"""What a healthy node of each kind looks like, as numbers: for `scenario.healthy` only, never read by fleetctl."""

from __future__ import annotations

from typing import NamedTuple

MIB = 1 << 20

# Buses of the eight GPUs of an HGX board; each shares a PCIe switch with the card three buses below it.
HGX = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
HGX_GPUS = tuple(f"0000:{bus}:00.0" for bus in HGX)
HGX_CARDS = tuple(f"0000:{int(bus, 16) - 3:02x}:00.0" for bus in HGX)
GRACE_GPUS = ("0008:01:00.0", "0009:01:00.0", "0018:01:00.0", "0019:01:00.0")
GRACE_CARDS = ("0000:03:00.0", "0002:03:00.0", "0010:03:00.0", "0012:03:00.0")

HDR = "200 Gb/sec (4X HDR)"
NDR = "400 Gb/sec (4X NDR)"
EDR = "100 Gb/sec (4X EDR)"

CX6, CX7 = 0x101B15B3, 0x102115B3

# Fabric health mask of a healthy Blackwell GPU: each of four faults "false" (2), configuration "none" (1).
ALL_WELL = 2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8


class Platform(NamedTuple):
    """A kind of node. `links_up` of `links` NVLinks are up on each GPU; `link_end` is what asking past them answers."""

    name: str
    product: str
    device_id: int
    driver: str
    memory_mib: int
    generation: int
    power_w: int
    gpus: tuple[str, ...] = HGX_GPUS
    links: int = 18
    links_up: int = 18
    link_end: int = 2
    link_speed_mbps: int = 26562
    switched: bool = True
    blackwell: bool = False
    fabric: bool = True
    margin: bool = True
    mig: bool = True
    recovery: bool = True
    cards: tuple[str, ...] = HGX_CARDS
    card_id: int = CX7
    rate: str = NDR
    ethernet: bool = False
    switches: tuple[int, int] = (0, 0)  # how many NVSwitches PCIe shows, and their device id


_ALL = (
    Platform(
        name="a100-sxm",
        product="NVIDIA A100-SXM4-80GB",
        device_id=0x20B210DE,
        driver="550.163.01",
        memory_mib=81920,
        generation=4,
        power_w=400,
        links=12,
        links_up=12,
        link_end=3,
        link_speed_mbps=25781,
        fabric=False,
        margin=False,
        recovery=False,
        card_id=CX6,
        rate=HDR,
        switches=(6, 0x1AF110DE),
    ),
    Platform(
        name="a100-pcie",
        product="NVIDIA A100 80GB PCIe",
        device_id=0x20B510DE,
        driver="550.163.01",
        memory_mib=81920,
        generation=4,
        power_w=300,
        links=12,
        links_up=12,
        link_end=3,
        link_speed_mbps=25781,
        switched=False,
        fabric=False,
        margin=False,
        recovery=False,
        cards=HGX_CARDS[:2],
        card_id=CX6,
        rate=HDR,
    ),
    Platform(
        name="h100-sxm",
        product="NVIDIA H100 80GB HBM3",
        device_id=0x233010DE,
        driver="570.133.20",
        memory_mib=81559,
        generation=5,
        power_w=700,
        switches=(4, 0x22A310DE),
    ),
    Platform(
        name="h100-pcie",
        product="NVIDIA H100 PCIe",
        device_id=0x233110DE,
        driver="570.133.20",
        memory_mib=81559,
        generation=5,
        power_w=350,
        links_up=12,
        switched=False,
        fabric=False,
        cards=HGX_CARDS[:2],
    ),
    Platform(
        name="h200",
        product="NVIDIA H200",
        device_id=0x233510DE,
        driver="575.57.08",
        memory_mib=143771,
        generation=5,
        power_w=700,
        switches=(4, 0x22A310DE),
    ),
    Platform(
        name="b200",
        product="NVIDIA B200",
        device_id=0x290110DE,
        driver="580.95.05",
        memory_mib=183359,
        generation=5,
        power_w=1000,
        link_speed_mbps=53125,
        blackwell=True,
    ),
    Platform(
        name="gb200",
        product="NVIDIA GB200",
        device_id=0x294110DE,
        driver="580.95.05",
        memory_mib=189471,
        generation=6,
        power_w=1200,
        gpus=GRACE_GPUS,
        link_speed_mbps=53125,
        blackwell=True,
        cards=GRACE_CARDS,
    ),
    Platform(
        name="l40s",
        product="NVIDIA L40S",
        device_id=0x26B910DE,
        driver="550.163.01",
        memory_mib=46068,
        generation=4,
        power_w=350,
        links=0,
        links_up=0,
        link_end=3,
        switched=False,
        fabric=False,
        margin=False,
        mig=False,
        recovery=False,
        cards=HGX_CARDS[:2],
        card_id=CX6,
        rate=EDR,
        ethernet=True,
    ),
)

PLATFORMS = {platform.name: platform for platform in _ALL}
