"""The node watch with real agents on loopback. A node's slurmd is a socket that listens, or is only bound: refused."""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fleetctl.clock import SystemClock
from fleetctl.launch import agent, hearts, moved
from fleetctl.launch.judge import Notice, NoticeKind, Rules, Verdict
from fleetctl.launch.links import Links
from fleetctl.launch.watch import Watch
from tests.support import BIN, wait_until

KEY = bytes(range(32))
FAST = Rules(beat_s=0.2, floor_s=0.5, ceiling_s=1.5, gap_s=0.3, join_s=60.0, own_pause_s=1.5, restart_s=2.0)
ON_TIME_S = 5.0  # within which a death has to be noticed
JOINED, TERM, SUSPECT, PAUSED = NoticeKind.JOINED, NoticeKind.TERM, NoticeKind.SUSPECT, NoticeKind.PAUSED
BACK, DEAD, CANNOT_TELL = NoticeKind.BACK, NoticeKind.DEAD, NoticeKind.CANNOT_TELL


class Slurmd:
    """A port that accepts, refuses, or (its queue being full) never answers."""

    def __init__(self) -> None:
        self._sock = socket.socket()
        self._sock.bind(("127.0.0.1", 0))
        self._crowd: list[socket.socket] = []
        self.address: tuple[str, int] = self._sock.getsockname()
        self.run()

    def run(self) -> None:
        self._sock.listen(128)

    def kill(self) -> None:
        """Nobody listens, and nobody else can take the port meanwhile."""
        self._sock.close()
        self._sock = socket.socket()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._sock.bind(self.address)

    def vanish(self) -> None:
        """Connections time out, as to a host without power."""
        self._sock.listen(0)
        for _ in range(4):
            self._crowd.append(socket.socket())
            self._crowd[-1].setblocking(False)
            self._crowd[-1].connect_ex(self.address)

    def close(self) -> None:
        for sock in (self._sock, *self._crowd):
            sock.close()


class Nodes:
    """A watch in this process, and agents in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempts = folder / "attempts"
        (self.attempts / "1.0").mkdir(parents=True)
        self.slurmd = {name: Slurmd() for name in ("head", "n1", "n2", "n3", "outside")}
        self.agents: list[subprocess.Popen[bytes]] = []
        self.watches: list[Watch] = []
        self.seen: list[Notice] = []

    def watch(self, *names: str, rules: Rules = FAST, outside: bool = False) -> Watch:
        endpoints = {name: self.slurmd[name].address for name in names}
        landmarks = (self.slurmd["outside"].address,) if outside else ()
        self.watches.append(Watch(names, endpoints, KEY, SystemClock(), rules=rules, landmarks=landmarks))
        return self.watches[-1]

    def where(self, port: int, slurmd: str | None = "head", host: str = "head") -> dict[str, Any]:
        known = list(self.slurmd[slurmd].address) if slurmd else None
        return {"host": host, "address": "127.0.0.1", "port": port, "slurmd": known}

    def agent(
        self, node: str, port: int, *, key: bytes = KEY, environ: dict[str, str] | None = None, **more: Any
    ) -> int:
        order: dict[str, Any] = {
            "node": node,
            "head": self.where(port),
            "attempts_dir": str(self.attempts),
            "attempt": "1.0",
        }
        order |= {"take_over": None, "heartbeat_s": FAST.beat_s, **more}
        with open(agent.__file__, "rb") as program:
            started = subprocess.Popen(
                [sys.executable, "-I", "-", json.dumps(order)],
                stdin=program,
                env={**os.environ, **(environ or {}), "FLEETCTL_WATCH_KEY": key.hex()},
            )
        self.agents.append(started)
        return started.pid

    def until(self, watch: Watch, probe: Callable[[], object], what: str, within_s: float = ON_TIME_S) -> None:
        deadline = time.monotonic() + within_s
        while not probe():
            assert time.monotonic() < deadline, f"not within {within_s} s: {what}; saw {self.seen}"
            self.seen.extend(watch.poll(0.05))

    def until_told(self, watch: Watch, kind: NoticeKind, node: str, within_s: float = ON_TIME_S) -> str:
        """Wait for the notice, and return its evidence."""
        start = len(self.seen)
        self.until(watch, lambda: (kind, node) in self.told(start), f"{kind} {node}", within_s)
        return next(one.evidence for one in self.seen[start:] if (one.kind, one.node) == (kind, node))

    def for_(self, watch: Watch, duration_s: float) -> None:
        until_s = time.monotonic() + duration_s
        while time.monotonic() < until_s:
            self.seen.extend(watch.poll(0.05))

    def told(self, start: int = 0) -> list[tuple[NoticeKind, str]]:
        return [(one.kind, one.node) for one in self.seen[start:]]

    def all_join(self, watch: Watch, *names: str) -> list[int]:
        pids = [self.agent(name, watch.port) for name in names]
        self.until(watch, lambda: {(JOINED, name) for name in names} <= set(self.told()), "all have joined", 20.0)
        return pids

    def write_head(self, attempt: str, text: str) -> None:
        (self.attempts / attempt).mkdir(exist_ok=True)
        (self.attempts / attempt / "head.tmp").write_text(text)
        (self.attempts / attempt / "head.tmp").rename(self.attempts / attempt / "head.json")

    def close(self) -> None:
        for started in self.agents:
            started.kill()
            started.wait()
        for watch in self.watches:
            watch.close()
        for one in self.slurmd.values():
            one.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    made.close()


# Joining and leaving


def test_agents_join_beat_and_are_dismissed(nodes: Nodes) -> None:
    watch = nodes.watch("n1", "n2")
    nodes.all_join(watch, "n1", "n2")
    nodes.for_(watch, 2.0)
    assert sorted(nodes.told()) == [(JOINED, "n1"), (JOINED, "n2")]
    assert watch.verdict("n1") is Verdict.LIVE
    watch.dismiss()
    assert [started.wait(ON_TIME_S) for started in nodes.agents] == [0, 0]
    nodes.agent("n1", watch.port)  # one that comes late
    nodes.until(watch, lambda: nodes.agents[-1].poll() is not None, "the late agent ends")
    assert nodes.agents[-1].returncode == 0
    nodes.for_(watch, 1.5)
    assert len(nodes.seen) == 2


def test_a_watch_without_nodes_waits_and_closes() -> None:
    watch = Watch((), {}, KEY, SystemClock())
    begin = time.monotonic()
    assert watch.poll(0.3) == ()
    assert 0.3 <= time.monotonic() - begin < 0.6
    watch.dismiss()
    watch.close()


def test_an_agent_that_never_joins_is_judged_by_its_nodes_slurmd(nodes: Nodes) -> None:
    nodes.slurmd["n2"].kill()
    watch = nodes.watch("n1", "n2", rules=Rules(join_s=0.5, floor_s=0.5, gap_s=0.3))
    nodes.until_told(watch, CANNOT_TELL, "n2")
    nodes.for_(watch, 3.0)
    assert watch.verdict("n1") is Verdict.PAUSED
    assert watch.verdict("n2") is Verdict.CANNOT_TELL  # nothing shows that it ever was well
    nodes.slurmd["n2"].run()
    nodes.until_told(watch, PAUSED, "n2")
    assert not watch.is_linked("n1")
    nodes.agent("n1", watch.port)
    nodes.until_told(watch, JOINED, "n1")
    assert watch.is_linked("n1")


def test_sigterm_is_told_once_and_survived(nodes: Nodes) -> None:
    watch = nodes.watch("n1", rules=Rules(beat_s=20.0, floor_s=20.0, ceiling_s=20.0))
    pid = nodes.agent("n1", watch.port, heartbeat_s=10.0)
    nodes.until_told(watch, JOINED, "n1")
    nodes.for_(watch, 0.5)  # it has read its welcome, and sleeps
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM, signal.SIGTERM):
        os.kill(pid, number)
    nodes.until_told(watch, TERM, "n1", 1.0)  # long before the next beat
    nodes.for_(watch, 1.0)
    assert nodes.told() == [(JOINED, "n1"), (TERM, "n1")]
    assert nodes.agents[0].poll() is None
    for _ in range(2):  # an agent that has to connect again tells it again
        again = _our_own_agent(nodes, watch, "n1")
        again.send(t="term")
        nodes.for_(watch, 0.3)
        again.sock.close()
    assert nodes.told().count((TERM, "n1")) == 1


def test_the_newer_of_two_agents_of_a_node_stays(nodes: Nodes) -> None:
    watch = nodes.watch("n1")
    nodes.all_join(watch, "n1")
    nodes.agent("n1", watch.port)
    nodes.until(watch, lambda: nodes.agents[0].poll() is not None, "the older agent ends")
    nodes.for_(watch, 1.0)
    assert nodes.agents[1].poll() is None
    assert watch.verdict("n1") is Verdict.LIVE
    assert DEAD not in {kind for kind, _ in nodes.told()}


# Judging


def test_a_killed_node_is_dead_in_time_and_stays_given_up(nodes: Nodes) -> None:
    watch = nodes.watch("n1", "n2")
    pid, _ = nodes.all_join(watch, "n1", "n2")
    nodes.slurmd["n1"].kill()
    os.kill(pid, signal.SIGKILL)
    evidence = nodes.until_told(watch, DEAD, "n1")
    assert "head: refused; n2: refused" in evidence
    assert watch.verdict("n1") is Verdict.DEAD
    nodes.slurmd["n1"].run()
    nodes.agent("n1", watch.port)
    nodes.until(watch, lambda: nodes.agents[-1].poll() is not None, "the agent is refused")
    assert nodes.agents[-1].returncode == 0
    assert watch.verdict("n1") is Verdict.DEAD
    assert watch.verdict("n2") is Verdict.LIVE
    assert nodes.told()[2:] == [(SUSPECT, "n1"), (DEAD, "n1")]


def test_a_frozen_node_pauses_comes_back_and_never_dies(nodes: Nodes) -> None:
    watch = nodes.watch("n1", "n2")
    pid, _ = nodes.all_join(watch, "n1", "n2")
    os.kill(pid, signal.SIGSTOP)
    nodes.for_(watch, 6.0)
    assert nodes.told()[2:] == [(SUSPECT, "n1"), (PAUSED, "n1")]
    assert watch.is_linked("n1")
    os.kill(pid, signal.SIGCONT)
    nodes.until_told(watch, BACK, "n1")
    nodes.for_(watch, 2.0)
    assert nodes.told()[2:] == [(SUSPECT, "n1"), (PAUSED, "n1"), (BACK, "n1")]


def test_a_killed_agent_on_a_living_node_is_a_pause_and_a_death_after_it_is_seen(nodes: Nodes) -> None:
    watch = nodes.watch("n1")
    (pid,) = nodes.all_join(watch, "n1")
    os.kill(pid, signal.SIGKILL)
    nodes.for_(watch, 2.0)
    assert nodes.told()[1:] == [(SUSPECT, "n1"), (PAUSED, "n1")]
    assert not watch.is_linked("n1")
    nodes.slurmd["n1"].kill()  # it restarts
    nodes.for_(watch, FAST.restart_s - 0.5)
    nodes.slurmd["n1"].run()
    nodes.for_(watch, FAST.restart_s)
    assert nodes.told()[1:] == [(SUSPECT, "n1"), (PAUSED, "n1")]
    nodes.slurmd["n1"].kill()
    nodes.until_told(watch, DEAD, "n1")


class _Quiet:
    """Wants every node and does nothing with what its agent says."""

    def wanted(self, node: str) -> bool:
        return bool(node)

    def peers_of(self, _node: str) -> list[list[Any]]:
        return []

    def on_joined(self, node: str) -> None: ...

    def on_lost(self, node: str) -> None: ...

    def on_message(self, node: str, message: dict[str, Any]) -> None: ...


@pytest.mark.parametrize("dismissed", [False, True])
def test_an_agent_that_does_not_read_stays_linked_until_its_connection_ends(dismissed: bool) -> None:
    with selectors.DefaultSelector() as selector:
        links = Links(selector, KEY, SystemClock(), _Quiet(), 1)

        def work() -> None:
            for key, _ in selector.select(0.05):
                key.data()

        wire = agent.Wire(socket.create_connection(("127.0.0.1", links.port)))
        got: list[dict[str, Any]] = []
        wait_until(lambda: work() or got.extend(wire.receive()) or got, "a challenge")  # type: ignore[func-returns-value]
        wire.send(t="hello", node="n1", nonce="ab", mac=agent.mac(KEY, "agent", got[0]["nonce"], "ab", "n1"))
        wait_until(lambda: work() or links.is_linked("n1"), "it is linked")  # type: ignore[func-returns-value]

        def fill() -> None:
            for number in range(41_000):  # far more than the kernel keeps, then to the last byte
                links.send("n1", t="x" * (1000 if number < 40_000 else 1))

        fill()
        links.beat()
        work()
        assert links.is_linked("n1")
        if dismissed:  # it cannot be told; it is when it comes again
            fill()  # the kernel may have taken a little more meanwhile
            links.dismiss()
            assert not links.is_linked("n1")
        wire.sock.close()
        wait_until(lambda: work() or not links.is_linked("n1"), "the end is seen")  # type: ignore[func-returns-value]
        links.close()


def test_a_node_that_vanished_without_a_word_is_dead_when_another_agent_says_so_too(nodes: Nodes) -> None:
    watch = nodes.watch("n1", "n2")
    pid, _ = nodes.all_join(watch, "n1", "n2")
    nodes.slurmd["n1"].vanish()
    os.kill(pid, signal.SIGSTOP)  # nothing comes from it and nothing is reset
    assert "head: unreachable; n2: unreachable" in nodes.until_told(watch, DEAD, "n1")
    os.kill(pid, signal.SIGCONT)  # it was no death after all: too late
    assert nodes.agents[0].wait(ON_TIME_S) == 0
    nodes.for_(watch, 1.0)
    assert watch.verdict("n1") is Verdict.DEAD


def test_a_head_that_loses_all_at_once_cannot_tell_unless_a_landmark_answers(nodes: Nodes) -> None:
    watch = nodes.watch("n1", "n2")
    for pid in nodes.all_join(watch, "n1", "n2"):
        os.kill(pid, signal.SIGSTOP)
    for name in ("n1", "n2"):
        nodes.slurmd[name].vanish()
    nodes.until_told(watch, CANNOT_TELL, "n1")
    nodes.for_(watch, 4.0)
    assert DEAD not in {kind for kind, _ in nodes.told()}
    os.kill(nodes.agents[0].pid, signal.SIGCONT)  # the cable is plugged in again, and one of them is really gone
    nodes.until_told(watch, BACK, "n1")
    nodes.until_told(watch, DEAD, "n2")


def test_a_landmark_proves_that_the_head_is_not_cut(nodes: Nodes) -> None:
    watch = nodes.watch("n1", outside=True)
    (pid,) = nodes.all_join(watch, "n1")
    nodes.slurmd["n1"].vanish()
    os.kill(pid, signal.SIGSTOP)
    nodes.until_told(watch, DEAD, "n1")
    assert CANNOT_TELL not in {kind for kind, _ in nodes.told()}


def test_the_word_of_another_agent_prevents_a_false_death(nodes: Nodes) -> None:
    """The head is refused, a firewall's doing; the other agent, here one of our own making, gets through."""
    watch = nodes.watch("n1", "n2")
    nodes.all_join(watch, "n1")
    helper, asked = _our_own_agent(nodes, watch, "n2"), 0
    nodes.slurmd["n1"].kill()
    os.kill(nodes.agents[0].pid, signal.SIGKILL)
    deadline = time.monotonic() + 4.0
    while time.monotonic() < deadline:
        nodes.seen.extend(watch.poll(0.05))
        helper.send(t="beat")
        for message in helper.receive():
            if message["t"] == "probe":
                asked += 1
                assert [message["address"], message["port"]] == list(nodes.slurmd["n1"].address)
                helper.send(t="probed", id=message["id"], outcome="accepted")
    helper.sock.close()
    assert asked >= 2
    assert watch.verdict("n1") is Verdict.PAUSED
    assert (DEAD, "n1") not in nodes.told()


def _our_own_agent(nodes: Nodes, watch: Watch, node: str) -> agent.Wire:
    wire = agent.Wire(socket.create_connection(("127.0.0.1", watch.port)))
    got: list[dict[str, Any]] = []
    nodes.until(watch, lambda: got.extend(wire.receive()) or got, "a challenge")  # type: ignore[func-returns-value]
    proof = agent.mac(KEY, "agent", got[0]["nonce"], "ab", node)
    wire.send(t="hello", node=node, nonce="ab", mac=proof)
    nodes.for_(watch, 0.3)
    assert watch.verdict(node) is Verdict.LIVE
    assert wire.receive()[0]["mac"] == agent.mac(KEY, "head", got[0]["nonce"], "ab", node)
    return wire


_HEAD = """
import sys, json
from fleetctl.clock import SystemClock
from fleetctl.launch.judge import Rules
from fleetctl.launch.watch import Watch
endpoints, rules = json.loads(sys.argv[1]), Rules(**json.loads(sys.argv[2]))
watch = Watch(("n1", "n2"), endpoints, bytes(range(32)), SystemClock(), rules=rules)
print(watch.port, flush=True)
while True:
    for one in watch.poll(0.1):
        print(one.kind, one.node, flush=True)
"""


def test_a_head_that_was_frozen_with_its_node_suspects_nobody(nodes: Nodes, tmp_path: Path) -> None:
    """All freeze and thaw together, the head first; the slurmd ports are closed, so any doubt would be death."""
    endpoints = json.dumps({name: nodes.slurmd[name].address for name in ("n1", "n2")})
    rules = json.dumps({"beat_s": 0.2, "floor_s": 1.0, "ceiling_s": 1.5, "gap_s": 0.1, "own_pause_s": 1.0})
    out = tmp_path / "out"
    with open(out, "wb") as file:
        head = subprocess.Popen([sys.executable, "-c", _HEAD, endpoints, rules], stdout=file)
    try:
        wait_until(lambda: out.read_text().endswith("\n"), "the head listens")
        port = int(out.read_text())
        pids = [nodes.agent(name, port) for name in ("n1", "n2")]
        wait_until(lambda: out.read_text().count("joined") == 2, "both joined")
        for name in ("n1", "n2"):
            nodes.slurmd[name].kill()
        for pid in (*pids, head.pid):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(5.0)
        os.kill(head.pid, signal.SIGCONT)
        time.sleep(0.3)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        time.sleep(3.0)
        assert sorted(out.read_text().split("\n")[1:]) == ["", "joined n1", "joined n2"]
        os.kill(pids[0], signal.SIGKILL)  # and it still sees a death
        wait_until(lambda: "dead n1" in out.read_text(), "n1 is dead", ON_TIME_S)
    finally:
        head.kill()
        head.wait()


def test_a_head_that_was_not_polled_knows_nothing_about_silences(nodes: Nodes) -> None:
    watch = nodes.watch("n1")
    (pid,) = nodes.all_join(watch, "n1")
    nodes.slurmd["n1"].kill()
    os.kill(pid, signal.SIGSTOP)
    nodes.for_(watch, 0.2)  # what it said before is heard
    time.sleep(FAST.own_pause_s + 0.5)
    nodes.for_(watch, FAST.floor_s - 0.2)
    assert nodes.told() == [(JOINED, "n1")]
    nodes.until_told(watch, DEAD, "n1")


# Strangers


def test_strangers_harm_nobody(nodes: Nodes) -> None:
    watch = nodes.watch("n1")
    strangers = [socket.create_connection(("127.0.0.1", watch.port)) for _ in range(8)]
    garbage, huge, deep, other_type, wrong, replay, slow, _silent = strangers
    garbage.sendall(os.urandom(3000).replace(b"\n", b"") + b"\n")
    huge.setblocking(False)
    deep.sendall(b"[" * 4000 + b"\n")
    other_type.sendall(b'{"t": "hello", "node": {}, "nonce": [], "mac": "\\ud800"}\n')
    wrong.sendall(b'{"t": "hello", "node": "n1", "nonce": "ab", "mac": "00"}\n{"t": "term"}\n')
    replay.sendall(json.dumps({"t": "hello", "node": "n1", "nonce": "ab", "mac": _old_proof()}).encode() + b"\n")
    nodes.all_join(watch, "n1")
    sent, begin = 0, time.monotonic()
    while time.monotonic() - begin < 6.0:  # beyond the time that a stranger has
        nodes.seen.extend(watch.poll(0.05))
        try:
            sent += huge.send(b"x" * 10_000_000) if sent < 10_000_000 else 0
            slow.send(b" ")
        except OSError:
            continue
    assert nodes.told() == [(JOINED, "n1")]
    assert watch.verdict("n1") is Verdict.LIVE
    for stranger in strangers:
        stranger.settimeout(1.0)
        assert _ended(stranger), stranger
        stranger.close()


def _old_proof() -> str:
    return agent.mac(KEY, "agent", "an older challenge", "ab", "n1")


def _ended(stranger: socket.socket) -> bool:
    try:
        while data := stranger.recv(4096):
            assert b"welcome" not in data
    except ConnectionError:
        return True
    return True


def test_many_silent_strangers_leave_room_for_an_agent(nodes: Nodes) -> None:
    watch = nodes.watch("n1")
    crowd = []
    for _ in range(100):
        crowd.append(socket.create_connection(("127.0.0.1", watch.port)))
        watch.poll(0)
    crowd[0].settimeout(1.0)
    assert _ended(crowd[0])
    nodes.all_join(watch, "n1")
    for stranger in crowd:
        stranger.close()


def test_an_agent_joins_no_head_that_does_not_know_the_key(nodes: Nodes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        impostor.settimeout(ON_TIME_S)
        nodes.agent("n1", impostor.getsockname()[1])
        for answer in (
            b'{"t": "bye"}\n',
            b'{"t": "welcome", "mac": "", "peers": []}\n{"t": "bye"}\n',
            b'{"t": "challenge", "nonce": "ab"}\n{"t": "welcome", "mac": "\xc3\xa9", "peers": []}\n{"t": "bye"}\n',
            b"x" * 100_000,
        ):
            accepted, _ = impostor.accept()
            accepted.sendall(answer)
            accepted.settimeout(ON_TIME_S)
            assert _ended(accepted)
            accepted.close()
    assert nodes.agents[0].poll() is None


def test_a_head_does_not_admit_an_agent_with_another_key(nodes: Nodes) -> None:
    watch = nodes.watch("n1")
    nodes.agent("n1", watch.port, key=bytes(32))
    nodes.for_(watch, 2.0)
    assert nodes.told() == []


def test_without_descriptors_agents_wait_and_the_watch_goes_on(nodes: Nodes) -> None:
    watch = nodes.watch("n1", "n2")
    nodes.all_join(watch, "n1")
    nodes.agent("n2", watch.port)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 2, hard))
    taken: list[int] = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            taken.extend(os.dup(0) for _ in range(10_000))
        before_s = time.process_time()
        nodes.for_(watch, 2.5)
        assert time.process_time() - before_s < 0.5
        assert nodes.told() == [(JOINED, "n1")]
        assert watch.verdict("n1") is Verdict.LIVE
    finally:
        for one in taken:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    nodes.until_told(watch, JOINED, "n2")


def test_addresses_of_the_family_that_slurm_uses_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 6818, 0, 0))
    four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 6818))
    other = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.0", 6818))
    found = [six, four, other]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: found)
    assert agent.resolve("node", 6818) == (socket.AF_INET, four[4])
    found = [six]
    assert agent.resolve("node", 6818) == (socket.AF_INET6, six[4])


# The head is lost


def test_an_agent_goes_to_a_newer_head(nodes: Nodes) -> None:
    old = nodes.watch("n1")
    nodes.all_join(old, "n1")
    new = nodes.watch("n1")
    nodes.write_head("1.0", json.dumps(nodes.where(1)))  # the same attempt is no newer one
    nodes.write_head("2.0", "{")
    nodes.write_head("2.1", json.dumps({**nodes.where(new.port), "slurmd": "?"}))
    nodes.write_head("10.0", json.dumps(nodes.where(new.port)))
    nodes.write_head("9.5", json.dumps(nodes.where(1)))
    nodes.for_(old, 1.5)
    assert nodes.told() == [(JOINED, "n1")]  # it has a head
    old.close()
    nodes.watches.remove(old)
    nodes.until_told(new, JOINED, "n1")
    assert agent.newer_head(str(nodes.attempts), (10, 0)) is None
    assert (agent.newer_head(str(nodes.attempts), (9, 9)) or [None])[0] == (10, 0)
    assert (agent.newer_head(str(nodes.attempts), (1, 0)) or [None])[0] == (10, 0)
    assert agent.newer_head(str(nodes.folder / "absent"), (1, 0)) is None


def _next_head(folder: Path, *statuses: int, leads: dict[int, dict[str, Any]] | None = None, hold: bool = False) -> str:
    """A program that notes each start, its environment and its last word, and ends with the next of these statuses,
    negative for a signal. Where `leads` says so, it leaves a head.json of attempt 1.NUMBER first; with `hold` it ends
    once there is a file `go`."""
    text = f"""
import json, os, pathlib, sys, time
folder = pathlib.Path({str(folder)!r})
count = len(list(folder.glob("start-*")))
(folder / f"start-{{count}}").write_text(json.dumps({{**os.environ, "LAST": sys.argv[-1]}}))
head = {leads or {}!r}.get(count)
if head:
    (folder / "attempts" / f"1.{{count}}").mkdir(exist_ok=True)
    (folder / "attempts" / f"1.{{count}}" / "head.json").write_text(json.dumps(head))
while {hold} and not (folder / "go").exists():
    time.sleep(0.05)
status = {list(statuses)!r}[count]
os.kill(os.getpid(), -status) if status < 0 else sys.exit(status)
"""
    (folder / "take-over.json").write_text(
        json.dumps({"argv": [sys.executable, "-c", text, "x" * 100_000, "y" * 100_000]})
    )
    return str(folder / "take-over.json")


def last_words(folder: Path) -> list[str]:
    return [json.loads((folder / f"start-{number}").read_text())["LAST"] for number in range(starts(folder))]


def starts(folder: Path) -> int:
    return len(list(folder.glob("start-*")))


def test_the_next_head_is_started_exactly_when_the_head_is_dead(nodes: Nodes, tmp_path: Path) -> None:
    watch = nodes.watch("n1")
    batch = {"SLURM_JOB_ID": "7", "SLURM_NODELIST": "head,n1", "SLURM_CONF": "/etc/slurm.conf"}
    environ = {"SLURM_STEP_ID": "3", "SLURM_PROCID": "0", "PMI_RANK": "0", "PMIX_X": "1", "SLURMD_NODENAME": "n1"}
    environ |= {"KEPT": "yes", "FLEETCTL_BATCH_ENV": json.dumps(batch)}
    nodes.agent("n1", watch.port, take_over=_next_head(tmp_path, 0), environ=environ)
    nodes.until_told(watch, JOINED, "n1")
    time.sleep(4.0)  # the head hangs: silent, its connection open, its node alive
    assert starts(tmp_path) == 0
    nodes.for_(watch, 1.0)
    assert nodes.told()[-1] in {(JOINED, "n1"), (BACK, "n1")}
    watch.close()  # the head's process is gone, its node lives: Slurm sees to that
    nodes.watches.clear()
    time.sleep(4.0)
    assert starts(tmp_path) == 0
    nodes.slurmd["head"].kill()
    wait_until(lambda: starts(tmp_path) == 1, "the next head runs", ON_TIME_S)
    assert nodes.agents[0].wait(ON_TIME_S) == 0
    assert last_words(tmp_path) == ["1.0"]
    got = json.loads((tmp_path / "start-0").read_text())
    assert {name: text for name, text in got.items() if name.startswith(("SLURM_", "PMI"))} == batch
    assert (got["KEPT"], got["SLURMD_NODENAME"], got["FLEETCTL_WATCH_KEY"]) == ("yes", "n1", KEY.hex())


def test_a_silent_head_with_an_open_connection_is_dead_when_its_slurmd_is(nodes: Nodes, tmp_path: Path) -> None:
    watch = nodes.watch("n1")
    nodes.agent("n1", watch.port, take_over=_next_head(tmp_path, 0))
    nodes.until_told(watch, JOINED, "n1")
    nodes.slurmd["head"].kill()
    nodes.for_(watch, 4.5)
    assert starts(tmp_path) == 0  # a head that beats is not dead, whatever its slurmd does
    wait_until(lambda: starts(tmp_path) == 1, "the next head runs", ON_TIME_S)


@pytest.mark.parametrize("peers", [False, True])
def test_a_head_that_vanished_is_dead_only_to_an_agent_that_reaches_somebody_else(
    nodes: Nodes, tmp_path: Path, peers: bool
) -> None:
    watch = nodes.watch("n1", "n2") if peers else nodes.watch("n1")
    nodes.agent("n1", watch.port, take_over=_next_head(tmp_path, 0))
    nodes.until_told(watch, JOINED, "n1")
    nodes.slurmd["head"].vanish()
    time.sleep(6.0)
    assert starts(tmp_path) == int(peers)


def test_a_terminated_agent_starts_no_head(nodes: Nodes, tmp_path: Path) -> None:
    watch = nodes.watch("n1")
    nodes.agent("n1", watch.port, take_over=_next_head(tmp_path, 0))
    nodes.until_told(watch, JOINED, "n1")
    os.kill(nodes.agents[0].pid, signal.SIGTERM)
    nodes.until_told(watch, TERM, "n1")
    nodes.slurmd["head"].kill()
    watch.close()
    nodes.watches.clear()
    time.sleep(4.0)
    assert starts(tmp_path) == 0


def test_when_another_agent_claimed_the_agent_goes_to_that_head(nodes: Nodes, tmp_path: Path) -> None:
    nodes.slurmd["head"].kill()
    nodes.agent("n1", 1, take_over=_next_head(tmp_path, 75, 75))
    wait_until(lambda: starts(tmp_path) == 1, "the next head runs", 10.0)
    new = nodes.watch("n1")
    nodes.write_head("1.1", json.dumps(nodes.where(new.port, slurmd="n2")))
    nodes.until_told(new, JOINED, "n1")
    assert starts(tmp_path) == 1


def test_a_claim_that_comes_to_nothing_is_tried_again_after_its_time(nodes: Nodes, tmp_path: Path) -> None:
    nodes.slurmd["head"].kill()
    nodes.agent("n1", 1, take_over=_next_head(tmp_path, 75, 0), again_s=6.0)
    wait_until(lambda: starts(tmp_path) == 1, "the next head runs", 10.0)
    time.sleep(4.5)
    assert starts(tmp_path) == 1
    wait_until(lambda: starts(tmp_path) == 2, "it runs again", 10.0)
    assert nodes.agents[0].wait(ON_TIME_S) == 0


def test_a_head_that_dies_under_its_agent_is_followed_until_one_ends_well(nodes: Nodes, tmp_path: Path) -> None:
    """The first fails before it leads (a full disk), the second leads and is killed (out of memory), its node lives."""
    nodes.slurmd["head"].kill()
    new = nodes.watch("n1", "n2")
    gone = nodes.where(1, slurmd="n1", host="n1")
    following = _next_head(tmp_path, 1, -9, 75, 3, 0, leads={1: gone})
    nodes.agent("n1", 1, take_over=following, pause_s=1.0, again_s=1.5)
    wait_until(lambda: starts(tmp_path) == 5, "it was tried again and again", 30.0)
    assert nodes.agents[0].wait(ON_TIME_S) == 0
    assert last_words(tmp_path) == ["1.0", "1.0", "1.1", "1.1", "1.1"]
    begun_s = [(tmp_path / f"start-{number}").stat().st_mtime for number in range(5)]
    pauses_s = [after - before for before, after in pairwise(begun_s)]
    assert all(least <= pause_s < least + 3.0 for least, pause_s in zip([1.0, 2.0, 1.5, 4.0], pauses_s, strict=True)), (
        pauses_s
    )
    assert new.verdict("n1") is Verdict.AWAITED


def test_a_head_that_dies_where_another_leads_already_is_not_followed(nodes: Nodes, tmp_path: Path) -> None:
    nodes.slurmd["head"].kill()
    new = nodes.watch("n1")
    elsewhere = nodes.where(1, slurmd="n2", host="n2")  # it lives and hangs: nobody may take over from it
    nodes.agent("n1", 1, take_over=_next_head(tmp_path, 1, 0, leads={0: elsewhere}), pause_s=1.0, attempt="0.9")
    wait_until(lambda: starts(tmp_path) == 1, "the next head runs", 10.0)
    time.sleep(4.0)
    assert starts(tmp_path) == 1
    nodes.write_head("1.1", json.dumps(nodes.where(new.port, slurmd=None)))
    nodes.until_told(new, JOINED, "n1")


def test_a_head_that_dies_is_not_followed_by_an_agent_that_was_terminated(nodes: Nodes, tmp_path: Path) -> None:
    nodes.slurmd["head"].kill()
    nodes.agent("n1", 1, take_over=_next_head(tmp_path, 1, 0, hold=True), pause_s=0.5)
    wait_until(lambda: starts(tmp_path) == 1, "the next head runs", 10.0)
    os.kill(nodes.agents[0].pid, signal.SIGTERM)
    (tmp_path / "go").touch()
    time.sleep(3.0)
    assert starts(tmp_path) == 1
    new = nodes.watch("n1")
    nodes.write_head("1.1", json.dumps(nodes.where(new.port, slurmd="n2")))
    nodes.until_told(new, TERM, "n1")


@pytest.mark.parametrize("text", [None, "{", "[]", '{"argv": [1]}', '{"argv": ["/nonexistent"]}'])
def test_a_take_over_that_cannot_be_read_is_tried_again_after_its_time(
    nodes: Nodes, tmp_path: Path, text: str | None
) -> None:
    nodes.slurmd["head"].kill()
    place = tmp_path / "later.json"
    if text is not None:
        place.write_text(text)
    nodes.agent("n1", 1, take_over=str(place), again_s=2.0)
    time.sleep(4.0)
    assert nodes.agents[0].poll() is None
    Path(_next_head(tmp_path, 0)).rename(place)
    assert nodes.agents[0].wait(10.0) == 0
    assert starts(tmp_path) == 1


def test_a_head_whose_slurmd_nobody_knows_is_never_dead_but_a_newer_one_is_followed(
    nodes: Nodes, tmp_path: Path
) -> None:
    nodes.agent("n1", 1, take_over=_next_head(tmp_path, 0), head=nodes.where(1, slurmd=None))
    time.sleep(4.0)
    assert starts(tmp_path) == 0
    assert nodes.agents[0].poll() is None
    new = nodes.watch("n1")
    nodes.write_head("1.1", json.dumps(nodes.where(new.port, slurmd=None)))
    nodes.until_told(new, JOINED, "n1")
    new.close()
    nodes.watches.clear()
    time.sleep(4.0)
    assert starts(tmp_path) == 0


def test_an_agent_without_a_head_looks_at_most_once_a_second(nodes: Nodes) -> None:
    pid = nodes.agent("n1", 1)
    time.sleep(1.0)
    before = _cpu_s(pid)
    time.sleep(3.0)
    assert nodes.agents[0].poll() is None
    assert _cpu_s(pid) - before < 0.1


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_agent_runs_on_an_old_python_and_needs_only_its_library() -> None:
    parts = [str(module.__file__) for module in (agent, hearts, moved)]
    argv = [str(BIN / "vermin"), "-q", "--no-tips", "-t=3.8-", "--violations", *parts]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    text = "".join(Path(part).read_text() for part in parts)
    modules = {line.split()[1] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert modules <= {*sys.stdlib_module_names, moved.__name__}
