"""The head's connections: whoever connects is a stranger until it proves that it is the agent of a node we want."""

from __future__ import annotations

import secrets
import selectors
import socket
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Protocol

from fleetctl.clock import Clock
from fleetctl.launch.agent import WIRE_ERRORS, Wire, mac, proves

_HELLO_WITHIN_S = 5.0  # an agent answers in a millisecond; a stranger who waits only holds a descriptor
_STRANGERS = 64  # connections that have not said who they are, beyond one for each node
_BACKLOG = 1024  # all agents come at once; the kernel bounds it (net.core.somaxconn)


class Listener(Protocol):
    """What is done with what agents say. Only proved agents of wanted nodes get here."""

    def wanted(self, node: str) -> bool:
        """Whether an agent of `node` may join; else it is told to end."""
        ...

    def peers_of(self, node: str) -> list[list[Any]]:
        """The [address, port] pairs by which the agent of `node` may check its own network."""
        ...

    def on_joined(self, node: str) -> None: ...

    def on_lost(self, node: str) -> None: ...

    def on_message(self, node: str, message: dict[str, Any]) -> None:
        """:raises ValueError, TypeError, LookupError: no message of ours; the connection ends."""
        ...


class _Link:
    """A connection from an agent, or, while `node` is empty, from anybody."""

    def __init__(self, sock: socket.socket, now_s: float) -> None:
        self.wire = Wire(sock)
        self.node = ""
        self.nonce = secrets.token_hex(16)
        self.until_s = now_s + _HELLO_WITHIN_S


class Links:
    """At most one connection to each node. No peer can do more than lose its own connection."""

    def __init__(
        self, selector: selectors.BaseSelector, key: bytes, clock: Clock, listener: Listener, expected: int
    ) -> None:
        """`expected` agents may come at once."""
        self._strangers_limit = expected + _STRANGERS
        self._selector, self._key, self._clock, self._listener = selector, key, clock, listener
        self._links: dict[str, _Link] = {}
        self._strangers: dict[_Link, None] = {}  # oldest first
        self._door = _open_door()
        self.port: int = self._door.getsockname()[1]
        self._selector.register(self._door, selectors.EVENT_READ, self._accept)

    def nodes(self) -> tuple[str, ...]:
        """The nodes whose agents are connected."""
        return tuple(self._links)

    def is_linked(self, node: str) -> bool:
        """Whether an agent of `node` is connected, as far as the kernel knows: a frozen one is."""
        return node in self._links

    def send(self, node: str, **message: Any) -> None:
        """Say it to the agent of `node`, if it is connected. To one that does not read, and for which too much waits
        already, it is not said."""
        link = self._links.get(node)
        if link is not None:
            self._tell(link, partial(link.wire.send, **message))

    def beat(self) -> None:
        """Tell every agent that the head lives."""
        for link in tuple(self._links.values()):
            self._tell(link, link.wire.beat)

    def dismiss(self) -> None:
        """Tell every agent to end. One that cannot be told loses its connection, and is told when it comes back."""
        for link in tuple(self._links.values()):
            self._guarded(link, partial(link.wire.send, t="bye"))

    def part(self, node: str) -> None:
        """Tell the agent of `node` to end, and hear no more of it."""
        link = self._links.pop(node, None)
        if link is not None:
            self._guarded(link, partial(link.wire.send, t="bye"))
            self._drop(link)

    def tidy(self, now_s: float) -> None:
        """Let go of strangers who had their time, and open the door again if it had to be shut."""
        for link in [link for link in self._strangers if link.until_s <= now_s]:
            self._drop(link)
        if self._door not in self._selector.get_map():
            self._selector.register(self._door, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Close all connections, without a word."""
        for link in (*self._links.values(), *self._strangers):
            link.wire.sock.close()
        self._door.close()

    def _accept(self) -> None:
        try:
            link = _Link(self._door.accept()[0], self._clock.monotonic_s())
            act = partial(self._guarded, link, partial(self._read, link))
            self._selector.register(link.wire.sock, selectors.EVENT_READ, act)
        except OSError:  # it went away again, or descriptors are out: shut the door until the next `tidy`
            self._selector.unregister(self._door)
            self._drop_oldest(len(self._strangers) - 1)
            return
        self._strangers[link] = None
        self._guarded(link, partial(link.wire.send, t="challenge", nonce=link.nonce))
        self._drop_oldest(self._strangers_limit)

    def _drop_oldest(self, leave: int) -> None:
        for link in tuple(islice(self._strangers, max(0, len(self._strangers) - max(0, leave)))):
            self._drop(link)

    def _read(self, link: _Link) -> None:
        for message in link.wire.receive():
            if link.node:
                self._listener.on_message(link.node, message)
            else:
                self._on_hello(link, message)

    def _on_hello(self, link: _Link, message: dict[str, Any]) -> None:
        node, nonce = str(message["node"]), str(message["nonce"])
        if message["t"] != "hello" or not proves(message["mac"], mac(self._key, "agent", link.nonce, nonce, node)):
            raise ValueError("not one of us")
        proof = mac(self._key, "head", link.nonce, nonce, node)
        link.wire.send(t="welcome", mac=proof, peers=self._listener.peers_of(node))
        if not self._listener.wanted(node):
            link.wire.send(t="bye")
            return self._drop(link)
        del self._strangers[link]
        self.part(node)  # an agent has one connection at a time: the other one is stale, or of a second agent
        link.node, self._links[node] = node, link
        return self._listener.on_joined(node)

    def _tell(self, link: _Link, act: Callable[[], None]) -> None:
        """For sending only. A full queue is no reason to part: a frozen node must not look like one without agent, so
        its connection is kept until the kernel says that it ended."""
        try:
            act()
        except ValueError:  # the queue is full; what is said is lost, and a beat later it may be empty
            return
        except WIRE_ERRORS:
            self._drop(link)

    def _guarded(self, link: _Link, act: Callable[[], None]) -> None:
        try:
            act()
        except WIRE_ERRORS:
            self._drop(link)

    def _drop(self, link: _Link) -> None:
        if link.wire.sock.fileno() < 0:
            return
        self._selector.unregister(link.wire.sock)
        link.wire.sock.close()
        self._strangers.pop(link, None)
        if self._links.get(link.node) is link:
            del self._links[link.node]
            self._listener.on_lost(link.node)


def _open_door() -> socket.socket:
    """On every address of this host, any free port."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
    return socket.create_server(("", 0), backlog=_BACKLOG)
