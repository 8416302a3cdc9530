"""A kernel log in the form of /dev/kmsg: `prefix,sequence,microseconds,flags;text`, then lines ` KEY=value`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

KERNEL, USER = 0, 1  # facilities; a record that user space wrote never has the kernel's


class Record(NamedTuple):
    """One record; `ago_s` is its age at the moment of writing the log."""

    text: str
    ago_s: float
    facility: int
    level: int
    keys: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Log:
    """Records in the order in which they were logged; `first` is the sequence number of the first one."""

    first: int = 1000
    records: list[Record] = field(default_factory=list)

    def line(
        self,
        text: str,
        *,
        facility: int = KERNEL,
        level: int = 4,
        ago_s: float = 30.0,
        keys: dict[str, str] | None = None,
    ) -> None:
        """One record as it stands; line breaks in `text` are escaped, as the kernel does."""
        self.records.append(Record(text, ago_s, facility, level, tuple((keys or {}).items())))

    def xid(
        self, pci: str, number: int, text: str, *, pid: str | None = None, name: str | None = None, ago_s: float = 30.0
    ) -> None:
        """`NVRM: Xid (PCI:0000:1b:00): 79, pid=..., name=..., text`; `pci` with or without function."""
        process = "" if pid is None else f" pid={pid}, name={name},"
        self.line(f"NVRM: Xid (PCI:{pci.split('.')[0]}): {number},{process} {text}", level=3, ago_s=ago_s)

    def sxid(self, switch: int, pci: str, number: int, text: str, *, ago_s: float = 30.0) -> None:
        """`nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, text`; `pci` with function."""
        self.line(f"nvidia-nvswitch{switch}: SXid (PCI:{pci}): {number:05d}, {text}", level=3, ago_s=ago_s)

    def fallen_off(self, pci: str, *, ago_s: float = 30.0) -> None:
        """The three-line message without any Xid: one record with two line breaks."""
        self.line(
            f"NVRM: The NVIDIA GPU {pci}\nNVRM: (PCI ID: 10de:2330) installed in this system has\n"
            "NVRM: fallen off the bus and is not responding to commands.",
            level=3,
            ago_s=ago_s,
        )

    def text(self, uptime_s: float) -> str:
        """The whole log, as it reads `uptime_s` seconds after the start."""
        return "".join(
            _record(record, self.first + at, max(0.0, uptime_s - record.ago_s))
            for at, record in enumerate(self.records)
        )


def _record(record: Record, sequence: int, at_s: float) -> str:
    head = f"{record.facility << 3 | record.level},{sequence},{int(at_s * 1e6)},-;{_escaped(record.text)}\n"
    return head + "".join(f" {key}={value}\n" for key, value in record.keys)


def _escaped(text: str) -> str:
    """Bytes that the kernel does not print as they are become \\xHH."""
    return "".join(chr(b) if 32 <= b < 127 and b != 92 else f"\\x{b:02x}" for b in text.encode())


def boot(driver: str) -> Log:
    """The ordinary noise of a healthy boot, hours ago."""
    log = Log()
    for text, keys in (
        ("Linux version 6.8.0-60-generic (buildd@lcy02) (gcc 13.3.0) #63-Ubuntu SMP PREEMPT_DYNAMIC", {}),
        ("Command line: BOOT_IMAGE=/boot/vmlinuz-6.8.0-60-generic ro iommu=pt", {}),
        (
            "pci 0000:1b:00.0: [10de:2330] type 00 class 0x030200 PCIe Endpoint",
            {"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:1b:00.0"},
        ),
        ("mlx5_core 0000:18:00.0: firmware version: 28.43.2026", {"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:18:00.0"}),
        ("mlx5_core 0000:18:00.0: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)", {}),
        ("nvidia: loading out-of-tree module taints kernel.", {}),
        ("nvidia-nvlink: Nvlink Core is being initialized, major device number 511", {}),
        (f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {driver}", {}),
        ("EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.", {}),
        ("systemd[1]: Started slurmd.service - Slurm node daemon.", {}),
    ):
        log.line(text, facility=3 if text.startswith("systemd") else KERNEL, level=6, ago_s=7200.0, keys=keys)
    return log
