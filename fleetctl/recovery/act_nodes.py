"""Deeds on nodes: a drain, and the word that a node is dead. For Slurm's Administrator level alone.

Whatever stands there from somebody else is left alone: a drain, a reason. Only the look just before can tell.
"""

from __future__ import annotations

from fleetctl.health.decide import MOST_REASON, PREFIX, plain
from fleetctl.recovery.look_again import POLL_S, Hands, node_of
from fleetctl.recovery.model import Deed, Outcome
from fleetctl.recovery.order import Answer
from fleetctl.slurm.model import Node

# slurmctld's own words for a node that it lost: they say nothing of a person's wish (as in health.tell)
_NOBODYS = frozenset({"", "Not responding"})
_DRAINS = frozenset({"DRAIN", "DRAINED", "DRAINING"})
_SEEN_WITHIN_S = 10.0
NOT_RESPONDING = "NOT_RESPONDING"


def reason_of(why: str) -> str:
    """One line that Slurm keeps as it is, and that says whose it is."""
    said = plain(why)
    return PREFIX + (said if len(said) <= MOST_REASON - len(PREFIX) else said[: MOST_REASON - len(PREFIX) - 3] + "...")


def drain(hands: Hands) -> Answer:
    """Let no more job start on the node."""
    node = _node(hands)
    if isinstance(node, Answer):
        return node
    if _is_drained(node):
        whose = "ours stands already" if node.reason.startswith(PREFIX) else f"somebody else's stands: {node.reason}"
        return Answer(Outcome.DONE if node.reason.startswith(PREFIX) else Outcome.CHANGED, f"{node.name}: {whose}")
    if why := _foreign(node) or hands.forbidden():
        return Answer(Outcome.CHANGED, why)
    hands.site.slurm.drain(node.name, reason_of(hands.why))
    return see(hands, wait=True)


def set_down(hands: Hands) -> Answer:
    """Call the node dead, whose death was proved. One that Slurm reaches again lives."""
    node = _node(hands)
    if isinstance(node, Answer):
        return node
    if node.base_state == "DOWN":
        return Answer(Outcome.DONE, f"{node.name} is DOWN already: {node.reason}")
    if NOT_RESPONDING not in node.flags:
        return Answer(Outcome.CHANGED, f"Slurm reaches {node.name}: it is {node.base_state}")
    if why := _foreign(node) or hands.forbidden():
        return Answer(Outcome.CHANGED, why)
    hands.site.slurm.down(node.name, reason_of(hands.why))
    return see(hands, wait=True)


def see(hands: Hands, *, wait: bool) -> Answer:
    """Whether the node is as it was to be, by our word."""
    until_s = min(hands.clock.monotonic_s() + (_SEEN_WITHIN_S if wait else 0), hands.order.deadline_s)
    down = hands.order.action.deed is Deed.SET_DOWN
    while True:
        node = _node(hands)
        if isinstance(node, Answer):
            return node
        stands = node.base_state == "DOWN" if down else _is_drained(node) and node.reason.startswith(PREFIX)
        said = f"{node.name} is {'+'.join([node.base_state, *sorted(node.flags)])}: {node.reason or 'no reason'}"
        if stands or hands.clock.monotonic_s() >= until_s:
            return Answer(Outcome.DONE if stands else Outcome.FAILED, said)
        hands.clock.sleep(POLL_S)


def _node(hands: Hands) -> Node | Answer:
    names = hands.order.action.nodes
    if len(names) != 1:
        return Answer(Outcome.CHANGED, f"one node at a time, not {len(names)}")
    found = node_of(hands, names[0])
    return found or Answer(Outcome.CHANGED, f"this cluster has no node {names[0]}")


def _is_drained(node: Node) -> bool:
    return bool(node.flags & _DRAINS)


def _foreign(node: Node) -> str:
    if node.reason.startswith(PREFIX) or node.reason in _NOBODYS:
        return ""
    return f"{node.name}: somebody else's reason stands: {node.reason}"
