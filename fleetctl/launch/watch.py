"""The head's side of the node watch: agents connect and beat, silent nodes are probed, `judge` says what follows."""

from __future__ import annotations

import selectors
from collections.abc import Mapping
from functools import partial
from typing import Any

from fleetctl.clock import Clock
from fleetctl.launch import judge
from fleetctl.launch.agent import MAX_PROBES, Prober, resolve
from fleetctl.launch.judge import NodeState, Notice, NoticeKind, Outcome, Round, Rules, Verdict
from fleetctl.launch.links import Links

Endpoint = tuple[str, int]

_TICK_S = 0.1
_RULES = Rules()
_HELPERS = 2  # agents asked about a suspect: one may be about to die itself
_PEERS = 3  # addresses an agent is told, by which it knows whether its own network is well


class _Asking:
    """A round of probes that is under way."""

    def __init__(self, node: str, number: int, now_s: float, until_s: float) -> None:
        self.node, self.number = node, number
        self.started_s, self.until_s = now_s, until_s
        self.own: Outcome | None = None
        self.asked: set[str] = set()
        self.opinions: dict[str, Outcome] = {}


class Watch:
    """Watches the nodes of one job from its head. Poll it at least once a second; it has no thread of its own.

    `nodes` are the other nodes, without the head's own. `endpoints` are their slurmd's (address, port): give
    addresses, names are resolved once, here. `landmarks` are places outside the job and off this host that answer
    while the head's network is well, such as the controller: without one, a job of two nodes cannot tell a node that
    vanished from a cut head. Every `poll` costs one select and, ten times a second, a little arithmetic per node.
    """

    def __init__(
        self,
        nodes: tuple[str, ...],
        endpoints: Mapping[str, Endpoint],
        key: bytes,
        clock: Clock,
        *,
        rules: Rules = _RULES,
        landmarks: tuple[Endpoint, ...] = (),
    ) -> None:
        self._clock, self._rules = clock, rules
        now_s = clock.monotonic_s()
        self._states = dict.fromkeys(nodes, judge.awaited(now_s, rules))
        self._slurmd = {node: resolve(*endpoints[node]) if node in endpoints else None for node in nodes}
        self._landmarks = tuple(target for place in landmarks if (target := resolve(*place)) is not None)
        self._order = {node: number for number, node in enumerate(nodes)}
        self._rounds: dict[str, _Asking] = {}
        self._contact_s = now_s  # when anybody was heard last: a node that is being probed is not, or its round ends
        self._told_term: set[str] = set()
        self._hearts: dict[str, object] = {}
        self._told: dict[str, object] = {}  # what every agent is to know
        self._notices: list[Notice] = []
        self._dismissed = False
        self._turn = 0
        self._tick_at_s = self._beat_at_s = self._landmarks_at_s = self._ran_s = now_s
        self._selector = selectors.DefaultSelector()
        self._prober = Prober(self._selector)
        self._links = Links(self._selector, key, clock, self, len(nodes))
        self.port = self._links.port

    def poll(self, timeout_s: float) -> tuple[Notice, ...]:
        """Work until there is something to tell, at most `timeout_s`; 0 looks once."""
        now_s = self._clock.monotonic_s()
        if now_s - self._ran_s > self._rules.own_pause_s:
            self._woke(now_s)
        until_s = now_s + timeout_s
        while True:
            wait_s = max(0.0, min(until_s, self._tick_at_s, self._prober.next_s()) - now_s)
            ready = self._selector.select(wait_s)
            before_s, now_s = now_s, self._clock.monotonic_s()
            if now_s - before_s - wait_s > self._rules.own_pause_s:
                self._woke(now_s)
            for key, _ in ready:
                if key.fileobj.fileno() >= 0:  # type: ignore[union-attr]  # the one before it did not close it
                    key.data()
            self._prober.expire(now_s)
            if now_s >= self._tick_at_s:
                self._tick_at_s = now_s + min(_TICK_S, self._rules.beat_s)
                self._tick(now_s)
            self._ran_s = now_s
            if self._notices or now_s >= until_s:
                notices, self._notices = tuple(self._notices), []
                return notices

    def verdict(self, node: str) -> Verdict:
        """What is held of `node` now."""
        return self._states[node].verdict

    def is_linked(self, node: str) -> bool:
        """Whether an agent of `node` is connected. PAUSED and linked: it is frozen, or its network is stuck. PAUSED and
        not linked: the node works, only its agent is gone."""
        return self._links.is_linked(node)

    def hearts(self) -> dict[str, object]:
        """What agents told of their ranks since this was asked last, the newest word of each: of any shape."""
        told, self._hearts = self._hearts, {}
        return told

    def tell_all(self, **message: object) -> None:
        """Say it to every agent, now and whenever one joins, until something else is told."""
        self._told = message
        for node in self._links.nodes():
            self._links.send(node, **message)

    def tell(self, node: str, **message: object) -> None:
        """Say it to the agent of one node, if it is connected."""
        self._links.send(node, **message)

    def dismiss(self) -> None:
        """The job is over: tell every agent, now and when it comes later, to end. Nobody is judged any more."""
        self._dismissed = True
        self._rounds.clear()
        self._links.dismiss()

    def close(self) -> None:
        """Close every connection; an agent that was not dismissed goes on looking for a head."""
        for key in tuple(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]  # all of ours are sockets
        self._links.close()
        self._selector.close()

    # What agents say

    def wanted(self, node: str) -> bool:
        state = self._states.get(node)
        return state is not None and state.verdict is not Verdict.DEAD and not self._dismissed

    def on_joined(self, node: str) -> None:
        self._hear(node, beat=False)
        if self._told:
            self._links.send(node, **self._told)

    def on_lost(self, node: str) -> None:
        if not self._dismissed:
            after = judge.broke(self._states[node], self._clock.monotonic_s())
            self._move(node, after, "its agent's connection ended")

    def on_message(self, node: str, message: dict[str, Any]) -> None:
        kind = message["t"]
        self._hear(node, beat=kind == "beat")
        if kind == "beat" and "hearts" in message:
            self._hearts[node] = message["hearts"]
        if kind == "term" and node not in self._told_term:
            self._told_term.add(node)
            self._notices.append(Notice(NoticeKind.TERM, node, "its agent got SIGTERM"))
        elif kind == "probed":
            asking = self._rounds.get(str(message["id"][0]))
            if asking is not None and asking.number == message["id"][1] and node in asking.asked:
                asking.opinions[node] = Outcome(message["outcome"])
                self._weigh(asking, self._clock.monotonic_s())

    def _hear(self, node: str, *, beat: bool) -> None:
        now_s = self._clock.monotonic_s()
        self._contact_s = now_s
        self._rounds.pop(node, None)
        self._move(node, judge.heard(self._states[node], now_s, self._rules, beat=beat), "its agent is heard")

    # Time

    def _tick(self, now_s: float) -> None:
        self._links.tidy(now_s)
        if now_s >= self._beat_at_s:
            self._beat_at_s = now_s + self._rules.beat_s
            self._links.beat()
        if self._dismissed:
            return
        for node, state in self._states.items():
            if state.verdict is not Verdict.DEAD:
                self._doubt(node, state, now_s)
        for asking in tuple(self._rounds.values()):
            self._weigh(asking, now_s)

    def _doubt(self, node: str, state: NodeState, now_s: float) -> None:
        silent = judge.silent(state, now_s, self._rules)
        self._move(node, silent, f"nothing heard for {now_s - state.heard_s:.1f} s")
        if silent.probe_at_s <= now_s and node not in self._rounds and len(self._rounds) < MAX_PROBES // 2:
            self._ask(node, now_s)

    def _woke(self, now_s: float) -> None:
        self._rounds.clear()
        for node, state in self._states.items():
            self._move(
                node, judge.woke(state, now_s, self._rules), "the head itself stood still, the silence counts anew"
            )

    def _move(self, node: str, after: NodeState, evidence: str) -> None:
        before, self._states[node] = self._states[node], after
        kind = judge.change(before, after)
        if kind is not None:
            self._notices.append(Notice(kind, node, evidence))
        if kind is NoticeKind.DEAD:
            self._links.part(node)

    # Probes

    def _ask(self, node: str, now_s: float) -> None:
        """Begin a round: our own probe, and that of up to two agents that are well."""
        self._turn += 1
        until_s = now_s + self._rules.probe_s
        asking = self._rounds[node] = _Asking(node, self._turn, now_s, until_s + self._rules.answer_s)
        target = self._slurmd[node]
        if target is not None:
            live = [other for other in self._links.nodes() if self._states[other].verdict is Verdict.LIVE]
            first = self._turn * _HELPERS % max(1, len(live))  # in turn, so that one bad helper cannot blind us
            for helper in (live[first:] + live[:first])[:_HELPERS]:
                asking.asked.add(helper)
                wish = {"id": [node, asking.number], "address": target[1][0], "port": target[1][1]}
                self._links.send(helper, t="probe", **wish)
        if not asking.asked and now_s >= self._landmarks_at_s:
            self._landmarks_at_s = now_s + self._rules.gap_s
            for landmark in self._landmarks:
                self._prober.start(landmark, until_s, self._on_landmark)
        self._prober.start(target, until_s, partial(self._on_own, asking))

    def _on_own(self, asking: _Asking, said: str) -> None:
        asking.own = Outcome(said)
        now_s = self._clock.monotonic_s()
        if asking.own in (Outcome.ACCEPTED, Outcome.REFUSED):
            self._contact_s = now_s
        self._weigh(asking, now_s)

    def _on_landmark(self, said: str) -> None:
        if said in (Outcome.ACCEPTED, Outcome.REFUSED):
            self._contact_s = self._clock.monotonic_s()

    def _weigh(self, asking: _Asking, now_s: float) -> None:
        """End the round as soon as it can say something, or its time is over."""
        if self._rounds.get(asking.node) is not asking:
            return
        contact = self._contact_s > asking.started_s
        ended = Round(asking.started_s, asking.own or Outcome.UNTRIED, tuple(asking.opinions.items()), contact)
        reading = judge.read(ended)
        waits = asking.own is None or len(asking.opinions) < len(asking.asked) or reading is judge.Reading.BLIND
        if waits and reading is not judge.Reading.ALIVE and now_s < asking.until_s:
            return
        del self._rounds[asking.node]
        state = self._states[asking.node]
        after = judge.after_round(state, ended, now_s, self._rules)
        self._move(asking.node, after, judge.describe(state, ended, now_s))

    def peers_of(self, node: str) -> list[list[Any]]:
        """Addresses by which the agent of `node` may know that its own network is well."""
        others = tuple(self._slurmd.values())
        after = self._order.get(node, 0) + 1
        near = (*others[after : after + _PEERS], *others[: min(_PEERS, after - 1)])[:_PEERS]
        return [[target[1][0], target[1][1]] for target in (*near, *self._landmarks) if target is not None]
