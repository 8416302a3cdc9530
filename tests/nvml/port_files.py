"""An InfiniBand or RoCE port as sysfs shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.nvml.machine import link_to, put

COUNTERS = (
    "VL15_dropped", "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery",
    "local_link_integrity_errors", "port_rcv_constraint_errors", "port_rcv_data", "port_rcv_errors",
    "port_rcv_packets", "port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors", "port_xmit_data", "port_xmit_discards", "port_xmit_packets", "port_xmit_wait",
    "symbol_error",
)  # fmt: skip
HW_COUNTERS = (
    "duplicate_request", "implied_nak_seq_err", "lifespan", "local_ack_timeout_err", "out_of_buffer",
    "out_of_sequence", "packet_seq_err", "req_cqe_error", "rnr_nak_retry_err", "roce_adp_retrans",
    "roce_slow_restart", "rx_icrc_encapsulated",
)  # fmt: skip


@dataclass(slots=True)
class Port:
    """`counters` and `hw_counters` may hold any text, UNREADABLE or MISSING in place of a number; so may the rest."""

    number: int
    state: str
    phys_state: str
    rate: str
    link_layer: str
    netdev: str | None
    operstate: str = "up"
    carrier: str = "1"
    carrier_changes: str | int = 2
    netdev_speed: str | int = -1
    counters: dict[str, str | int] = field(default_factory=dict)
    hw_counters: dict[str, str | int] = field(default_factory=dict)

    def go_down(self) -> None:
        """No cable, or no other end."""
        self.state, self.phys_state, self.rate = "1: DOWN", "2: Polling", "2.5 Gb/sec (1X SDR)"
        self.operstate, self.carrier = "down", "0"

    def disable(self) -> None:
        """Switched off on purpose."""
        self.go_down()
        self.phys_state = "3: Disabled"

    def saturate(self) -> None:
        """Counters at their ceilings, where they stay."""
        for name in ("link_downed", "link_error_recovery"):
            self.counters[name] = 255
        for name in ("symbol_error", "port_rcv_errors", "port_xmit_discards"):
            self.counters[name] = 65535
        for name in ("local_link_integrity_errors", "excessive_buffer_overrun_errors"):
            self.counters[name] = 15
        self.counters["port_xmit_wait"] = 4294967295


def port(rate: str, netdev: str | None, *, number: int = 1, ethernet: bool = False) -> Port:
    """A healthy port."""
    counters: dict[str, str | int] = dict.fromkeys(COUNTERS, 0)
    for name in ("port_rcv_data", "port_rcv_packets", "port_xmit_data", "port_xmit_packets"):
        counters[name] = 8_123_456_789
    hw_counters: dict[str, str | int] = dict.fromkeys(HW_COUNTERS, 0)
    hw_counters["lifespan"] = 10
    layer = "Ethernet" if ethernet else "InfiniBand"
    gbps = int(float(rate.split()[0]))
    return Port(
        number,
        "4: ACTIVE",
        "5: LinkUp",
        rate,
        layer,
        netdev,
        netdev_speed=gbps * 1000,
        counters=counters,
        hw_counters=hw_counters,
    )


def write_port(sys: Path, card: Path, device: str, port: Port) -> None:
    """The port below its card's folder, and the links to it in /sys/class/infiniband and /sys/class/net."""
    home = card / "infiniband" / device
    ports = home / "ports" / str(port.number)
    for name in ("state", "phys_state", "rate", "link_layer"):
        put(ports / name, getattr(port, name))
    for folder, counters in (("counters", port.counters), ("hw_counters", port.hw_counters)):
        for name, value in counters.items():
            put(ports / folder / name, value)
    put(ports / "gid_attrs/types/0", "IB/RoCE v1" if port.link_layer == "InfiniBand" else "RoCE v2")
    put(home / "fw_ver", "28.43.2026")
    put(home / "board_id", "MT_0000000838")
    put(home / "hca_type", "MT4129")
    put(home / "node_type", "1: CA")
    link_to(home / "device", card)
    link_to(sys / "class/infiniband" / device, home)
    if port.netdev is not None:
        net = card / "net" / port.netdev
        put(net / "operstate", port.operstate)
        put(net / "carrier", port.carrier)
        put(net / "carrier_changes", port.carrier_changes)
        put(net / "speed", port.netdev_speed)
        put(net / "dev_port", port.number - 1)
        link_to(net / "device", card)
        link_to(sys / "class/net" / port.netdev, net)
