"""The agent of one node: beats to the head, tells of SIGTERM, probes for it, and may start the next head.

    python3 -I - '{"node": ...}' < agent.py

Standard library only, Python 3.8: the program comes through srun's stdin, nothing is read from a shared file system.
The head imports it too, so the line protocol, its proofs and its probes are written once. Of the node's ranks it knows
through hearts.py, which is looked for once, at the start.

Both sides prove that they know FLEETCTL_WATCH_KEY. Head: challenge(nonce); agent: hello(node, nonce, mac); head:
welcome(mac, peers). Then the head says beat, probe, hearts, gather and bye; the agent says beat, term and probed.
"""

from __future__ import annotations

import errno
import hmac
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Callable, Optional, Tuple

try:
    from fleetctl.launch import hearts
except ImportError:  # fleetctl is not on this node: nobody sees its ranks, and the rest works
    hearts = None  # type: ignore[assignment]

MAX_LINE = 4096  # bytes; our longest line, a welcome with its peers, has a few hundred
MAX_PROBES = 128  # at once: descriptors are few (often 1024)
PROBE_S = 0.8  # a connection takes under 1 ms; a repeated SYN (after 1 s, RFC 6298) is the next round's job
WIRE_ERRORS = (OSError, ValueError, TypeError, LookupError, RecursionError)  # lost, or does not speak our language
_LOOK_S = 1.0  # between two looks for the head: each lists a directory of a shared file system
_SILENT_BEATS = 2.0  # one beat may be lost to a busy head; a wrong suspicion costs one connection
_OWN_PAUSE_S = 2.0  # who stood still for longer knows nothing about the silence of others
_WELCOME_WITHIN_S = 10.0  # a connection to a head that vanished before its first word is never reset
_CLAIMED_ELSEWHERE = 75  # EX_TEMPFAIL, sysexits.h
_AGAIN_S = 90.0  # an NFS client may show another host's new file 60 s late (nfs(5), acdirmax)
_PAUSE_S, _MAX_PAUSE_S = 5.0, 60.0  # before we follow our own child; doubles each time, for a full disk stays full
_ATTEMPT = re.compile(r"[0-9]+\.[0-9]+")
_ERROR = (socket.SOL_SOCKET, socket.SO_ERROR)
_NO_WAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.ETIMEDOUT)

Target = Tuple[socket.AddressFamily, Any]  # family and socket address
Head = Tuple[Optional[Target], Optional[Target], str]  # where it listens, its node's slurmd if known, its node


def resolve(address: str, port: int) -> Target | None:
    """Where to connect to; None when the name is not known now. May ask DNS: do it while the network is well."""
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, OverflowError):
        return None
    # Without EnableIPv6 (slurm.conf.5, CommunicationParameters) a slurmd is not on IPv6, and would seem to refuse
    return min(((one[0], one[4]) for one in found), key=lambda target: target[0] != socket.AF_INET)


def mac(key: bytes, side: str, head_nonce: str, agent_nonce: str, node: str) -> str:
    """The proof of `side` ("head" or "agent"): both nonces are in it, so no old proof fits."""
    return hmac.new(key, json.dumps([side, head_nonce, agent_nonce, node]).encode(), "sha256").hexdigest()


def proves(claimed: object, expected: str) -> bool:
    """Whether a stranger's `claimed`, of any type, is the proof."""
    return hmac.compare_digest(str(claimed).encode(), expected.encode())


class Wire:
    """JSON lines over a non-blocking socket. What it raises (WIRE_ERRORS) ends this peer's connection only."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self._in = self._out = b""

    def send(self, **message: Any) -> None:
        line = json.dumps(message).encode() + b"\n" if message else b""
        if len(self._out) + len(line) > 16 * MAX_LINE:
            raise ValueError("the peer does not read")
        self._out += line
        try:
            while self._out:
                self._out = self._out[self.sock.send(self._out) :]
        except BlockingIOError:
            return

    def beat(self, **more: Any) -> None:
        """Say that we live; or, to a peer that does not read, try again what still waits."""
        self.send(**({} if self._out else {"t": "beat", **more}))

    def receive(self) -> list[dict[str, Any]]:
        """The lines that came, maybe none. Reads a bounded piece: others want to be heard too."""
        try:
            data = self.sock.recv(MAX_LINE)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the peer")
        *lines, self._in = (self._in + data).split(b"\n")
        if any(len(line) > MAX_LINE for line in (*lines, self._in)):
            raise ValueError("a line is too long")
        messages = [json.loads(line) for line in lines]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError("not an object")
        return messages


class Prober:
    """Connects without waiting: does somebody accept there? `done` gets accepted, refused, unreachable or untried."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._running: dict[socket.socket, tuple[float, Callable[[str], None]]] = {}

    def start(self, target: Target | None, until_s: float, done: Callable[[str], None]) -> None:
        """Begin; `done` may be called before this returns."""
        try:
            if target is None or len(self._running) >= MAX_PROBES:
                raise OSError(errno.EMFILE, "cannot try")
            sock = socket.socket(target[0], socket.SOCK_STREAM)
        except OSError:
            return done("untried")
        sock.setblocking(False)
        self._running[sock] = (until_s, done)
        self._selector.register(sock, selectors.EVENT_WRITE, lambda: self._end(sock, sock.getsockopt(*_ERROR)))
        code = sock.connect_ex(target[1])
        return None if code in (0, errno.EINPROGRESS) else self._end(sock, code)

    def next_s(self) -> float:
        """When `expire` has something to do."""
        return min((until_s for until_s, _ in self._running.values()), default=float("inf"))

    def expire(self, now_s: float) -> None:
        """End those whose time is over as unreachable."""
        for sock in [sock for sock, (until_s, _) in self._running.items() if until_s <= now_s]:
            self._end(sock, errno.ETIMEDOUT)

    def _end(self, sock: socket.socket, code: int) -> None:
        self._selector.unregister(sock)
        sock.close()
        _, done = self._running.pop(sock)
        done({0: "accepted", errno.ECONNREFUSED: "refused"}.get(code, "unreachable" if code in _NO_WAY else "untried"))


def parse_head(told: Any) -> Head:
    """:raises WIRE_ERRORS: this does not say where a head is."""
    slurmd = None
    if told["slurmd"] is not None:  # else nobody knows its port, and nothing can prove that head's death to us
        address, port = told["slurmd"]
        slurmd = resolve(str(address), int(port))
    return resolve(str(told["address"]), int(told["port"])), slurmd, str(told.get("host"))


def numbers(attempt: str) -> tuple[int, ...]:
    """What orders attempts: "3.1" -> (3, 1)."""
    return tuple(int(part) for part in attempt.split("."))


def newer_head(attempts_dir: str, known: tuple[int, ...]) -> tuple[tuple[int, ...], Head] | None:
    """The newest attempt after `known` that says where its head is."""
    try:
        names = [name for name in os.listdir(attempts_dir) if _ATTEMPT.fullmatch(name) and numbers(name) > known]
    except OSError:
        return None
    for name in sorted(names, key=numbers, reverse=True):
        try:
            with open(os.path.join(attempts_dir, name, "head.json"), "rb") as file:
                return numbers(name), parse_head(json.loads(file.read(MAX_LINE)))
        except WIRE_ERRORS:
            continue  # not written yet
    return None


class Agent:
    """One node's agent; `run` returns its exit status."""

    def __init__(self, order: dict[str, Any], environ: dict[str, str]) -> None:
        self._node, self._beat_s = str(order["node"]), float(order["heartbeat_s"])
        self._attempts_dir, self._attempt = str(order["attempts_dir"]), numbers(order["attempt"])
        self._key, self._again_s = bytes.fromhex(environ["FLEETCTL_WATCH_KEY"]), float(order.get("again_s", _AGAIN_S))
        self._pause_s = self._first_pause_s = float(order.get("pause_s", _PAUSE_S))
        self._next_head = str(order.get("take_over") or "")  # a file: one word of an argv has at most 128 KiB
        self._next_environ = {name: text for name, text in environ.items() if not name.startswith(("SLURM_", "PMI"))}
        self._next_environ.update(json.loads(environ.get("FLEETCTL_BATCH_ENV") or "{}"))
        self._selector = selectors.DefaultSelector()
        self._prober = Prober(self._selector)
        self._hearts = hearts.Hearts(self._attempts_dir) if hearts else None
        self._wire: Wire | None = None
        self._nonce, self._challenge, self._welcomed = "", "", False
        self._peers: list[Target | None] = []  # others that answer while our own network is well
        self._answers: tuple[list[str], list[str]] = ([], [])  # of a round: the head's slurmd, the peers
        self._gone, self._orphaned = 0, False  # rounds in a row that found the head dead; it was our child, and died
        self._terminated, self._told_term = False, False
        self._status: int | None = None
        self._look_at_s = self._beat_at_s = self._not_before_s = time.monotonic()
        self._head = parse_head(order["head"])
        self._start_anew()

    def run(self) -> int:
        waker, wakes = socket.socketpair()  # a signal does not end a select by itself (PEP 475)
        wakes.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        self._selector.register(waker, selectors.EVENT_READ, lambda: waker.recv(64))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # unlike SIG_IGN, the next head inherits none
            signal.signal(number, self._on_signal)
        while self._status is None:
            next_s = min(self._beat_at_s, self._prober.next_s(), self._look_at_s if self._lost() else float("inf"))
            for key, _ in self._selector.select(max(0.0, next_s - time.monotonic())):
                if key.fileobj.fileno() >= 0:  # type: ignore[union-attr]  # the one before it did not close it
                    key.data()
            now_s = time.monotonic()
            if now_s - next_s > _OWN_PAUSE_S:
                self._start_anew()
            self._prober.expire(now_s)
            self._on_time(now_s)
        return self._status

    def _on_signal(self, number: int, _frame: Any) -> None:
        self._terminated = self._terminated or number == signal.SIGTERM

    def _on_time(self, now_s: float) -> None:
        if self._welcomed and self._terminated and not self._told_term:
            self._told_term = True
            self._say(t="term")
        if now_s >= self._beat_at_s:
            self._beat_at_s = now_s + self._beat_s
            told, wire = self._hearts.told(now_s) if self._hearts else {}, self._wire
            if self._welcomed and wire is not None:
                self._guarded(lambda: wire.beat(**told))
        if self._lost() and now_s >= self._look_at_s and self._status is None:
            self._look_at_s = now_s + _LOOK_S
            self._look(now_s)

    def _lost(self) -> bool:
        return not self._welcomed or time.monotonic() - self._heard_s > _SILENT_BEATS * self._beat_s

    def _look(self, now_s: float) -> None:
        """Once a second without a head: is there a newer one, is ours dead, can it be reached?"""
        found = newer_head(self._attempts_dir, self._attempt)
        if found is not None:
            (self._attempt, self._head), self._orphaned = found, False
            self._drop()
            self._start_anew()
        self._gone = self._gone + 1 if self._found_dead() else 0
        may = self._next_head and not self._terminated and now_s >= self._not_before_s
        if may and (self._orphaned or self._gone >= 2):
            return self._take_over()
        if self._wire is not None and not self._welcomed and now_s > self._dialled_s + _WELCOME_WITHIN_S:
            self._drop()
        if self._wire is None:
            self._guarded(lambda: self._dial(now_s))
        self._answers = ([], [])
        self._prober.start(self._head[1], now_s + PROBE_S, self._answers[0].append)
        for peer in self._peers:
            self._prober.start(peer, now_s + PROBE_S, self._answers[1].append)
        return None

    def _found_dead(self) -> bool:
        """What the last round says. No answer is death only if somebody else answers: it may be us who is cut."""
        head, peers = self._answers
        return head == ["refused"] or (head == ["unreachable"] and ("accepted" in peers or "refused" in peers))

    def _start_anew(self) -> None:
        """Forget what speaks against the head."""
        self._heard_s, self._gone, self._answers = time.monotonic(), 0, ([], [])

    def _dial(self, now_s: float) -> None:
        target = self._head[0]
        if target is not None:
            self._wire, self._dialled_s = Wire(socket.socket(target[0], socket.SOCK_STREAM)), now_s
            self._selector.register(self._wire.sock, selectors.EVENT_READ, lambda: self._guarded(self._read))
            self._wire.sock.connect_ex(target[1])  # its failure makes the socket readable

    def _read(self) -> None:
        for message in self._wire.receive() if self._wire is not None else ():
            if self._welcomed:
                self._on_message(message)
            else:
                self._shake_hands(message)

    def _shake_hands(self, message: dict[str, Any]) -> None:
        if message.get("t") == "challenge" and not self._challenge:
            self._challenge, self._nonce = str(message["nonce"]), os.urandom(16).hex()
            proof = mac(self._key, "agent", self._challenge, self._nonce, self._node)
            return self._say(t="hello", node=self._node, nonce=self._nonce, mac=proof)
        expected = mac(self._key, "head", self._challenge, self._nonce, self._node)
        if message.get("t") != "welcome" or not proves(message.get("mac"), expected):
            raise ValueError("not our head")
        self._peers = [resolve(str(address), int(port)) for address, port in message["peers"]]
        self._welcomed, self._told_term, self._beat_at_s = True, False, 0.0
        self._orphaned, self._pause_s = False, self._first_pause_s
        self._not_before_s = 0.0  # a claim that we lost was for the succession of the head before this one
        return self._start_anew()

    def _on_message(self, message: dict[str, Any]) -> None:
        self._start_anew()
        if self._hearts:
            self._hearts.heed(message)
        if message.get("t") == "bye":
            self._status = 0
        elif message.get("t") == "probe":
            number, target = message["id"], resolve(str(message["address"]), int(message["port"]))
            until_s = time.monotonic() + PROBE_S
            self._prober.start(target, until_s, lambda outcome: self._say(t="probed", id=number, outcome=outcome))

    def _say(self, **message: Any) -> None:
        wire = self._wire
        if wire is not None:
            self._guarded(lambda: wire.send(**message))

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except WIRE_ERRORS:
            self._drop()

    def _drop(self) -> None:
        if self._wire is not None:
            self._selector.unregister(self._wire.sock)
            self._wire.sock.close()
        self._wire, self._welcomed, self._challenge = None, False, ""

    def _take_over(self) -> None:
        """Become the parent of the next head, in the batch script's place; it is told whose death that follows."""
        self._drop()
        try:
            with open(self._next_head, "rb") as file:
                argv = [*json.loads(file.read())["argv"], ".".join(map(str, self._attempt))]
            status = subprocess.Popen(argv, env=self._next_environ, stdin=subprocess.DEVNULL).wait()
        except WIRE_ERRORS:
            status = _CLAIMED_ELSEWHERE  # not for us, then: another agent may be able to
        self._start_anew()
        if status == 0:
            self._status = 0
        elif status == _CLAIMED_ELSEWHERE:
            self._not_before_s = self._heard_s + self._again_s
        else:  # it died as head, or before: only we can know, and a job without a head burns its GPUs
            found = newer_head(self._attempts_dir, self._attempt)
            self._attempt, self._head = found or (self._attempt, self._head)
            self._orphaned = found is None or self._head[2] == self._node  # else another agent's head leads
            self._not_before_s, self._pause_s = self._heard_s + self._pause_s, min(2 * self._pause_s, _MAX_PAUSE_S)


if __name__ == "__main__":
    sys.exit(Agent(json.loads(sys.argv[1]), dict(os.environ)).run())
