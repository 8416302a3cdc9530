"""Tells the service manager how the daemon is (sd_notify.3): datagrams to the socket that NOTIFY_SOCKET names."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from msgspec import Struct

_LIMIT_S = 1.0  # the manager's queue may be full: then it is not told


class Manager(Struct, frozen=True):
    """The service manager; `address` "": there is none, and nothing is sent."""

    address: str
    watchdog_s: float | None = None  # it ends the service that says nothing for so long

    def ready(self, status: str) -> None:
        """Started; `status` is one line for `systemctl status`."""
        self._send(f"READY=1\nSTATUS={status}")

    def alive(self, status: str = "") -> None:
        """Nothing hangs: the watchdog begins anew."""
        self._send("WATCHDOG=1" + (f"\nSTATUS={status}" if status else ""))

    def stopping(self, status: str) -> None:
        self._send(f"STOPPING=1\nSTATUS={status}")

    def _send(self, text: str) -> None:
        """Nothing that goes wrong here matters to the runs."""
        if not self.address:
            return
        name = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(_LIMIT_S)
                sock.connect(name)
                sock.sendall(text.encode(errors="surrogateescape"))
        except OSError:
            pass


def manager_of(environ: Mapping[str, str]) -> Manager:
    """By NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID (sd_watchdog_enabled.3); another kind of socket is none."""
    address = environ.get("NOTIFY_SOCKET", "")
    meant = environ.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
    usec = environ.get("WATCHDOG_USEC", "")
    watchdog_s = int(usec) / 1e6 if meant and usec.isascii() and usec.isdigit() and int(usec) else None
    return Manager(address if address[:1] in ("/", "@") else "", watchdog_s)
