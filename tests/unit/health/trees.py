"""Small trees of sysfs and proc, for the tests of what reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

COUNTERS = (
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors", "port_xmit_discards",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors",
)  # fmt: skip
HW_COUNTERS = ("rnr_nak_retry_err", "local_ack_timeout_err", "roce_slow_restart")


def put(path: Path, text: str) -> None:
    """An attribute, as sysfs writes it: with a line feed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogateescape") + b"\n")


def link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.symlink(target, path)


def pci_function(
    sys: Path,
    way: str,
    identity: int,
    kind: int = 0x030200,
    *,
    speeds: tuple[str, str] = ("32.0 GT/s PCIe", "32.0 GT/s PCIe"),
    widths: tuple[str, str] = ("16", "16"),
) -> Path:
    """A device at the end of `way` ("0000:15:01.0/0000:1b:00.0": its bridges, itself), with the link in the bus."""
    home = sys / "devices/pci0000:15" / way
    put(home / "vendor", f"{identity & 0xFFFF:#06x}")
    put(home / "device", f"{identity >> 16:#06x}")
    put(home / "class", f"{kind:#08x}")
    for name, text in zip(("current_link_speed", "max_link_speed"), speeds, strict=True):
        put(home / name, text)
    for name, text in zip(("current_link_width", "max_link_width"), widths, strict=True):
        put(home / name, text)
    address = way.rpartition("/")[2]
    link(sys / "bus/pci/devices" / address, f"../../../devices/pci0000:15/{way}")
    return home


def ib_port(sys: Path, device: str = "mlx5_0", port: int = 1, files: Mapping[str, str] | None = None) -> Path:
    """A healthy NDR port; `files` overwrites one ("rate", "counters/link_downed")."""
    folder = sys / "class/infiniband" / device / "ports" / str(port)
    texts: dict[str, str] = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        **{f"counters/{name}": "0" for name in COUNTERS},
        **{f"hw_counters/{name}": "0" for name in HW_COUNTERS},
        **(files or {}),
    }
    for name, text in texts.items():
        put(folder / name, text)
    return folder


def record(sequence: int, text: str, *, facility: int = 0, level: int = 3, at_us: int | None = None) -> str:
    """One record of /dev/kmsg."""
    at = sequence * 1000 if at_us is None else at_us
    return f"{facility << 3 | level},{sequence},{at},-;{text}\n"


def records(texts: Mapping[int, str]) -> str:
    return "".join(record(sequence, text) for sequence, text in texts.items())
