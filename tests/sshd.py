"""Real sshd on loopback: each is a node with host keys, a network address and a disk of its own (as root)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import wait_until

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "/usr/sbin/sshd"
_PRIVATE = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


class Node:
    """One sshd. What is installed under the common prefix there lies in `disk`."""

    def __init__(self, place: Path, address: str, port: int, prefix: Path) -> None:
        self.address, self.port = address, port
        self.disk = place / f"disk-{address}"
        self.disk.mkdir()
        self._place, self._prefix = place, prefix
        self._process: subprocess.Popen[bytes] | None = None
        self.host_key = self._own_key = self.new_key("host")

    def new_key(self, name: str) -> Path:
        key = self._place / f"{name}-{self.address}"
        key.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], input=b"y\n", check=True)
        return key

    @property
    def known_line(self) -> str:
        kind, key, *_ = self.host_key.with_suffix(self.host_key.suffix + ".pub").read_text().split()
        return f"[{self.address}]:{self.port} {kind} {key}\n"

    def start(self) -> None:
        config = self._place / f"sshd_config-{self.address}"
        config.write_text(
            f"Port {self.port}\nListenAddress {self.address}\nHostKey {self.host_key}\n"
            f"AuthorizedKeysFile {self._place}/me.pub\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "PermitRootLogin prohibit-password\nPidFile none\nSubsystem sftp internal-sftp\n"
        )
        private = ["unshare", "--mount", "sh", "-c", _PRIVATE, "sh", str(self.disk), str(self._prefix)]
        with open(self._place / f"log-{self.address}", "ab") as log:
            self._process = subprocess.Popen(
                [*private, SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until(self._listens, f"sshd on {self.address}")

    def renew(self) -> None:
        """Its own key again, and up."""
        if self.host_key != self._own_key or self._process is None:
            self.stop()
            self.host_key = self._own_key
            self.start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
            self._process = None

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.address, self.port)) == 0

    def current(self) -> str:
        """The name of the release that is current there."""
        return os.readlink(self.disk / "current").removeprefix("releases/")


class Nodes:
    """Three nodes; `options` are those of `fleetctl node install` that lead to them."""

    def __init__(self, place: Path) -> None:
        self.place, self.prefix = place, place / "opt"
        self.prefix.mkdir()
        self.known_hosts, self.identity = place / "known_hosts", place / "me"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.identity], check=True)
        port = free_port()
        self.all = [Node(place, f"127.0.0.{number}", port, self.prefix) for number in (1, 2, 3)]
        self.hosts = "127.0.0.[1-3]"
        self.know()

    def renew(self) -> None:
        """As after the start: empty disks, every key known, every node up."""
        for node in self.all:
            for path in node.disk.iterdir():
                path.unlink() if path.is_symlink() else shutil.rmtree(path)
            node.disk.chmod(0o755)
            node.renew()
        self.know()

    def know(self) -> None:
        """Note the host keys as they are now."""
        self.known_hosts.write_text("".join(node.known_line for node in self.all))

    @property
    def options(self) -> list[str]:
        ways = [f"--port={self.all[0].port}", f"--identity={self.identity}", f"--known-hosts={self.known_hosts}"]
        return [*ways, f"--prefix={self.prefix}", "--user=root"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def three_nodes(place: Path) -> Iterator[Nodes]:
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's own need, where its package's boot script never ran
    nodes = Nodes(place)
    try:
        for node in nodes.all:
            node.start()
        yield nodes
    finally:
        for node in nodes.all:
            node.stop()
