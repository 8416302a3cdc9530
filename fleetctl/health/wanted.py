"""What a node of one kind should have, as values. Pure."""

from __future__ import annotations

from typing import Mapping, Optional, Tuple

from fleetctl.health.record import NamedTuple


class PortWanted(NamedTuple):
    """A port that must be up; None: as it comes."""

    device: str
    port: int
    rate_gbps: Optional[float] = None
    width: Optional[int] = None


class Profile(NamedTuple):
    """What a node of this kind should have. None: not known, so nothing is wrong there.

    `links` are the numbers of NVLinks that may be up on one GPU: (18,), or (0, 12) where bridges are optional.
    """

    name: str
    device_ids: Tuple[int, ...] = ()
    gpus: Optional[int] = None
    links: Optional[Tuple[int, ...]] = None
    pcie_generation: Optional[int] = None
    pcie_width: Optional[int] = None
    memory_mib: Optional[int] = None
    fabric: Optional[bool] = None
    ecc: Optional[bool] = None
    driver: Optional[str] = None
    ports: Optional[Tuple[PortWanted, ...]] = None
    nic_links: Mapping[str, Tuple[float, int]] = {}  # address of a card or of a bridge -> (GT/s, lanes)
    host_memory_bytes: Optional[int] = None
