"""Events of a kernel log and the table of Xids, for the tests of what is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import fleetctl.health
from fleetctl.health.kernel_lines import parse_line
from fleetctl.health.model import Answer, Event, EventKind, Gpu, Nvml, Readings
from fleetctl.health.xid import XidTable, load_xids

PCI = "0000:1b:00"
OTHER = "0000:43:00"
NOW = 10_000.0  # seconds since the boot
RESET = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
REBOOT = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
CLEARED = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"


@lru_cache(maxsize=1)
def package_data() -> tuple[str, str]:
    """What is in xids.json and link_rules.json."""
    folder = Path(fleetctl.health.__file__).parent
    return (folder / "xids.json").read_text(), (folder / "link_rules.json").read_text()


def table(site: Mapping[str, str] | None = None) -> XidTable:
    xids, links = package_data()
    return load_xids(xids, site or {}, links)


def xid(number: int, text: str = "", *, pci: str | None = PCI, ago: float = 60.0, count: int = 1) -> Event:
    """An Xid that was logged `ago` seconds before NOW."""
    return logged(EventKind.XID, text, pci=pci, ago=ago, count=count)._replace(number=number)


def logged(
    kind: EventKind, text: str = "", *, pci: str | None = None, ago: float = 60.0, count: int = 1, severity: str = ""
) -> Event:
    at_s = NOW - ago
    return Event(int(at_s * 1000), at_s, at_s, kind, pci, None, text, severity=severity or None, count=count)


def parsed(line: str, ago: float = 60.0) -> Event:
    """The event of this line, as the reader of the log makes it."""
    found = parse_line(line)
    assert found is not None, line
    at_s = NOW - ago
    return Event(int(at_s * 1000), at_s, at_s, *found)


def readings(events: Sequence[Event] | None) -> Readings:
    """A look at NOW on a node with two GPUs."""
    gpus = (Gpu(3, pci=f"{PCI}.0"), Gpu(4, pci=f"{OTHER}.0"))
    nvml = Nvml(Answer.ANSWERED, gpus=gpus)
    return Readings("n1", "boot", 0.0, NOW, nvml=nvml, events=None if events is None else tuple(events))
