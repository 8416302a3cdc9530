"""Commands on other machines by SSH: strict host keys, no passwords, and a time limit on everything.

paramiko is imported only when somebody connects.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, NamedTuple

from fleetctl.clock import Clock
from fleetctl.errors import HostKeyRefused, SshError
from fleetctl.known_hosts import KnownHosts

if TYPE_CHECKING:
    import paramiko

_CONNECT_S = 10.0  # TCP; a switched-off node answers nothing at all
_HANDSHAKE_S = 20.0  # banner, keys and login, each; sshd with a slow name server needs some seconds
_KEEPALIVE_S = 5  # so that firewalls on the way keep an idle connection
_SILENCE_S = 0.5  # how long to wait for more before looking at the clock again
_CHUNK = 1 << 16
_MOST_OUTPUT = 8 << 20  # a command that prints more than 8 MiB is broken


@dataclass(frozen=True, slots=True)
class Login:
    """How to log in. None: as OpenSSH has it by default (our user name, the agent and ~/.ssh/id_*)."""

    user: str | None = None
    port: int = 22
    identity: Path | None = None
    known_hosts: Path | None = None


class Ran(NamedTuple):
    """A command that ended: its exit status (-1: killed by a signal), and what it printed on both streams."""

    status: int
    text: str


class Ssh:
    """A connection to one host. Used as a context manager."""

    def __init__(self, host: str, client: paramiko.SSHClient, clock: Clock) -> None:
        self.host = host
        self._client = client
        self._clock = clock

    def __enter__(self) -> Ssh:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float) -> Ran:
        """Run a command to its end.

        :raises SshError: the connection broke, or the command did not end in time or printed too much; it may go on
            over there.
        """
        import paramiko

        deadline = self._clock.monotonic_s() + timeout_s
        transport = self._client.get_transport()
        assert transport is not None, "connect makes it"
        try:
            channel = transport.open_session(timeout=timeout_s)
            try:
                channel.set_combine_stderr(True)
                channel.exec_command(join(argv))
                return self._talk(channel, stdin, deadline)
            finally:
                channel.close()
        except TimeoutError:
            raise SshError(f"{self.host}: {Path(argv[0]).name} did not end within {timeout_s:g} s") from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise SshError(f"{self.host}: the connection broke: {error or type(error).__name__}") from None

    def _talk(self, channel: paramiko.Channel, stdin: bytes, deadline: float) -> Ran:
        """:raises TimeoutError, EOFError: not ended by then, or the connection did."""
        self._tell(channel, stdin, deadline)
        parts: list[bytes] = []
        size = 0
        channel.settimeout(_SILENCE_S)
        while True:
            try:
                part = channel.recv(_CHUNK)
            except TimeoutError:
                part = None
            if part == b"":
                break
            parts += [part] if part else []
            size += len(part or b"")
            if size > _MOST_OUTPUT:
                raise SshError(f"{self.host}: it answered more than {_MOST_OUTPUT >> 20} MiB")
            if self._clock.monotonic_s() > deadline:
                raise TimeoutError
        if not channel.status_event.wait(max(deadline - self._clock.monotonic_s(), _SILENCE_S)):
            raise TimeoutError
        if channel.exit_status == -1 and not channel.get_transport().is_active():
            raise EOFError("it was closed from the other side")
        return Ran(channel.exit_status, b"".join(parts).decode("utf-8", "replace"))

    def _tell(self, channel: paramiko.Channel, stdin: bytes, deadline: float) -> None:
        """:raises TimeoutError: it did not take all by then, however slowly it takes."""
        rest = memoryview(stdin)
        try:
            while rest:
                left = deadline - self._clock.monotonic_s()
                if left <= 0:
                    raise TimeoutError
                channel.settimeout(left)
                sent = channel.send(rest[:_CHUNK])
                if sent == 0:
                    return
                rest = rest[sent:]
            channel.shutdown_write()
        except TimeoutError:
            raise
        except OSError:  # it has ended without reading all: what it printed says why
            pass


def connect(host: str, login: Login, known: KnownHosts, clock: Clock) -> Ssh:
    """Log in, only to a host whose key is known.

    :raises HostKeyRefused: its key is not known, revoked, or another one.
    :raises SshError: it cannot be reached, or lets us not in.
    """
    import logging

    import paramiko

    logging.getLogger("paramiko").addHandler(logging.NullHandler())  # it logs tracebacks of what we report in a line
    name = host if login.port == 22 else f"[{host}]:{login.port}"
    client = paramiko.SSHClient()
    with contextlib.ExitStack() as undo:
        undo.callback(client.close)
        unread = _trust(client, name, known)
        client.set_missing_host_key_policy(_Refusal(host, login.port, known, unread))
        peer = _dial(host, login.port)
        undo.callback(peer.close)
        try:
            client.connect(
                host,
                login.port,
                login.user,
                sock=peer,
                key_filename=str(login.identity) if login.identity else None,
                look_for_keys=login.identity is None,
                timeout=_HANDSHAKE_S,
                banner_timeout=_HANDSHAKE_S,
                auth_timeout=_HANDSHAKE_S,
            )
        except (paramiko.SSHException, OSError, EOFError, ValueError) as error:
            raise _explained(error, host, name, login, known) from None
        transport = client.get_transport()
        assert transport is not None, "connect made it"
        transport.set_keepalive(_KEEPALIVE_S)
        undo.pop_all()
    return Ssh(host, client, clock)


def _dial(host: str, port: int) -> socket.socket:
    try:
        peer = socket.create_connection((host, port), timeout=_CONNECT_S)
    except TimeoutError:
        raise SshError(f"{host}: no answer on port {port} within {_CONNECT_S:g} s", remedy="is the node up?") from None
    except (socket.gaierror, UnicodeError):  # of a name with an empty or an endless part
        raise SshError(f"{host}: no such host name here") from None
    except ConnectionRefusedError:
        raise SshError(f"{host}: nothing listens on port {port}", remedy="is sshd running there?") from None
    except OSError as error:
        raise SshError(f"{host}: {error.strerror or error}") from None
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # 44 -> 3 ms for each command
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return peer


def _trust(client: paramiko.SSHClient, name: str, known: KnownHosts) -> int:
    """How many of the host's lines hold no key that can be read."""
    import paramiko

    unread = 0
    for kind, text in known.keys(name):
        try:
            entry = paramiko.hostkeys.HostKeyEntry.from_line(f"{name} {kind} {text}")
        except Exception:  # noqa: BLE001 - whatever the parsers of six kinds of key make of a damaged one
            entry = None
        if entry is not None and entry.key is not None:  # None: also a type that paramiko does not know
            client.get_host_keys().add(name, entry.key.get_name(), entry.key)
        else:
            unread += 1
    return unread


class _Refusal:
    """A policy of paramiko: what to do, before anybody logs in, about a host of which no key counts."""

    def __init__(self, host: str, port: int, known: KnownHosts, unread: int) -> None:
        self._host, self._port, self._known, self._unread = host, port, known, unread

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """:raises HostKeyRefused: always."""
        place = self._known.place
        if self._known.is_revoked(key.get_base64()):
            raise HostKeyRefused(f"{self._host}: its host key is revoked in {place}")
        port = f"-p {self._port} " if self._port != 22 else ""
        damaged = ": the line there holds no key that can be read" if self._unread else ""
        raise HostKeyRefused(
            f"{self._host}: its host key is not in {place}{damaged}",
            remedy=f"ssh-keyscan {port}{self._host} >>{place}, and compare it with the key on the node itself",
        )


def _explained(error: Exception, host: str, name: str, login: Login, known: KnownHosts) -> SshError:
    """What a failed login means, and what to do about it."""
    import paramiko

    if isinstance(error, paramiko.BadHostKeyException) and known.is_revoked(error.key.get_base64()):
        return HostKeyRefused(f"{host}: its host key is revoked in {known.place}")
    if isinstance(error, paramiko.BadHostKeyException):
        return HostKeyRefused(
            f"{host}: its host key is not the one in {known.place}: {error.key.get_name()} {error.key.fingerprint} now",
            remedy=f"if the node was installed anew: ssh-keygen -R '{name}' -f {known.place}, then note its new key; "
            "if not, find out who answers there",
        )
    if isinstance(error, paramiko.PasswordRequiredException):
        return SshError(f"{host}: the key has a passphrase", remedy="ssh-add it to an agent first")
    if isinstance(error, paramiko.AuthenticationException) or "No authentication methods" in str(error):
        user = login.user or "your user name"
        return SshError(f"{host}: no key was accepted for {user}", remedy="--user, --identity, or ssh-add")
    return SshError(f"{host}: SSH did not come up: {error or type(error).__name__}")
