"""Is a silent node dead? Pure: what was heard and probed goes in, a verdict comes out.

A node of the job runs an agent that beats. When the beat stops, or its connection breaks, the node is SUSPECT and a
second path is tried in rounds: does its slurmd port accept a TCP connection, asked by the head and by up to two other
agents? One accepted connection proves that the kernel there lives: PAUSED. Two rounds in which everybody failed, begun
at least `gap_s` apart, with nothing accepted in between: DEAD, for ever. Two exceptions, for a slurmd that restarts:

- a node whose slurmd accepted since it is silent (only its agent died, say): the failed rounds must span `restart_s`.
- a node that never joined (its agent could not start) is never DEAD: nothing shows that it ever was well.

The head must not take its own lost network for the death of the others. A failed round counts only when

1. the node's own kernel refused (the head's probe, or another agent's): no cut cable answers "refused"; or
2. it timed out or was unreachable, and since this round began the head heard from *somebody else*: an agent's line, or
   any answer, accepted or refused, to a probe of another node or of a landmark outside the job.

Else the round is blind: CANNOT_TELL, and Slurm's own word (NODE_FAIL) has to be awaited. What follows:

- 1 other node: it is found dead when it refuses (slurmd died with it, the host is up), or when a landmark answers. A
  host that vanished without a word and no landmark: CANNOT_TELL, since a cut head would see exactly the same.
- 2 other nodes: one vanishes and the other still beats or answers: DEAD. Both vanish at once: CANNOT_TELL as above.
- many: any number may vanish together while one still beats or answers. All at once: CANNOT_TELL.
- The network splits: each side finds the other dead. Who may go on is for the exclusive claim of an attempt to say.

Evidence must be newer than the round, not only newer than the silence: beats that came just before the cable was cut
are newer than another node's last beat. A round begins a beat or more after the last line, so it is after the cut.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf, sqrt

from msgspec import Struct
from msgspec.structs import replace


class Verdict(StrEnum):
    """What the head holds of a node. DEAD is final: the node is given up, whatever comes from it later."""

    AWAITED = "awaited"  # its agent never joined, and there is still time
    LIVE = "live"
    SUSPECT = "suspect"
    PAUSED = "paused"  # silent, but slurmd's port accepts: slow, frozen, or only the agent is gone
    CANNOT_TELL = "cannot_tell"  # silent, and so is everything else: maybe it is the head that is cut
    DEAD = "dead"


class Outcome(StrEnum):
    """How a connection to a slurmd port went. The agent uses the same texts."""

    ACCEPTED = "accepted"
    REFUSED = "refused"  # a kernel answered and nobody listens
    UNREACHABLE = "unreachable"  # timed out, or no way there
    UNTRIED = "untried"  # the prober could not even try: no descriptors, no address


class NoticeKind(StrEnum):
    """What happened to a node."""

    JOINED = "joined"
    TERM = "term"  # Slurm told the steps of this node to end
    SUSPECT = "suspect"
    PAUSED = "paused"
    CANNOT_TELL = "cannot_tell"
    BACK = "back"
    DEAD = "dead"


class Notice(Struct, frozen=True):
    """One event of one node; `evidence` is for people."""

    kind: NoticeKind
    node: str
    evidence: str = ""


class Rules(Struct, frozen=True):
    """The times of the watch, in seconds. With the defaults a killed node is DEAD 2 to 4 s after its last beat."""

    beat_s: float = 1.0
    floor_s: float = 2.0  # one beat may be lost to a busy node; a wrong suspicion costs a few connections, no more
    ceiling_s: float = 5.0  # a node that beats badly must not become one whose death is noticed late
    sigmas: float = 4.0  # of any distribution at most 1/16 lies further out (Chebyshev)
    gap_s: float = 1.0  # one burst of lost packets must not fail two rounds
    restart_s: float = 15.0  # a slurmd that restarts refuses for 1 to 10 s, and its node lives
    probe_s: float = (
        0.8  # a connection takes under 1 ms; waiting for a lost SYN's repetition (1 s, RFC 6298) is the gap's job
    )
    answer_s: float = 0.4  # and for another agent's word about it to reach us
    join_s: float = 60.0  # srun starts a step in seconds; a slow prolog or a first python from NFS takes longer
    own_pause_s: float = 2.0  # longer than any work between two polls
    rest_s: float = 30.0  # between rounds of a long pause: a frozen slurmd never empties its queue of 128 or 4096


class NodeState(Struct, frozen=True):
    """What is known of a node. Times are monotonic seconds of the head."""

    verdict: Verdict
    heard_s: float  # the last sign of life; at first, when the waiting began
    joined: bool = False
    beat_at_s: float | None = None  # the last beat of this connection
    mean_s: float = 1.0  # of the intervals between beats
    variance: float = 0.0
    doubted_s: float = 0.0  # when the present doubt began
    probe_at_s: float = inf  # when the next round may begin
    gone_s: float | None = None  # when the first round of the present row of failed ones began
    accepted: bool = False  # by its slurmd, since it was heard last


class Round(Struct, frozen=True):
    """One ended round of probes of one node."""

    started_s: float
    own: Outcome
    opinions: tuple[tuple[str, Outcome], ...] = ()  # by the agents of these nodes
    contact: bool = False  # somebody other than this node was heard since the round began


class Reading(StrEnum):
    """What a round says."""

    ALIVE = "alive"
    GONE = "gone"
    BLIND = "blind"


_WEIGHT = 0.1  # of the newest interval in mean and variance: they forget in about 20 beats
_REST_SHARE = 0.1  # a round after each tenth of the pause so far


def awaited(now_s: float, rules: Rules) -> NodeState:
    """A node whose agent has not joined yet."""
    return NodeState(Verdict.AWAITED, now_s, mean_s=rules.beat_s)


def allowed_silence_s(state: NodeState, rules: Rules) -> float:
    """How long this node may be silent: its own rhythm decides, within floor and ceiling."""
    return min(max(rules.floor_s, state.mean_s + rules.sigmas * sqrt(state.variance)), rules.ceiling_s)


def heard(state: NodeState, now_s: float, rules: Rules, *, beat: bool) -> NodeState:
    """Its agent said something; a `beat` also teaches us its rhythm. The dead stay dead."""
    if state.verdict is Verdict.DEAD:
        return state
    mean_s, variance = state.mean_s, state.variance
    if beat and state.beat_at_s is not None:
        off_s = min(now_s - state.beat_at_s, rules.ceiling_s) - mean_s
        mean_s += _WEIGHT * off_s
        variance = (1 - _WEIGHT) * (variance + _WEIGHT * off_s * off_s)
    beat_at_s = now_s if beat else state.beat_at_s
    return NodeState(Verdict.LIVE, now_s, True, beat_at_s, mean_s, variance)


def broke(state: NodeState, now_s: float) -> NodeState:
    """The connection to its agent ended: doubt at once, and if we doubted already, probe at once."""
    if state.verdict is Verdict.DEAD:
        return state
    state = replace(state, beat_at_s=None)
    return _doubted(state, now_s) if state.verdict is Verdict.LIVE else replace(state, probe_at_s=now_s)


def silent(state: NodeState, now_s: float, rules: Rules) -> NodeState:
    """Time has passed: a node that was silent for too long, or never joined, is doubted."""
    limits_s = {Verdict.LIVE: allowed_silence_s(state, rules), Verdict.AWAITED: rules.join_s}
    return _doubted(state, now_s) if now_s - state.heard_s > limits_s.get(state.verdict, inf) else state


def woke(state: NodeState, now_s: float, rules: Rules) -> NodeState:
    """The head itself stood still: what it did not hear meanwhile says nothing, so every silence begins anew."""
    if state.verdict is Verdict.DEAD:
        return state
    if state.verdict is Verdict.PAUSED:  # that was proved; only the row of failed rounds is void
        return replace(state, heard_s=now_s, beat_at_s=None, gone_s=None, probe_at_s=now_s + rules.floor_s)
    verdict = Verdict.LIVE if state.joined else Verdict.AWAITED
    return replace(state, verdict=verdict, heard_s=now_s, beat_at_s=None, gone_s=None, probe_at_s=inf)


def read(ended: Round) -> Reading:
    """What the answers of a round say together; the module's text has the rule and its reasons."""
    outcomes = (ended.own, *(outcome for _, outcome in ended.opinions))
    if Outcome.ACCEPTED in outcomes:
        return Reading.ALIVE
    if Outcome.REFUSED in outcomes:
        return Reading.GONE
    return Reading.GONE if Outcome.UNREACHABLE in outcomes and ended.contact else Reading.BLIND


def after_round(state: NodeState, ended: Round, now_s: float, rules: Rules) -> NodeState:
    """The state after a round of probes of a doubted node."""
    if state.verdict not in (Verdict.SUSPECT, Verdict.PAUSED, Verdict.CANNOT_TELL):
        return state
    next_s = max(now_s, ended.started_s + rules.gap_s)
    reading = read(ended)
    rest_s = min(max(rules.gap_s, _REST_SHARE * (now_s - state.doubted_s)), rules.rest_s)
    if reading is Reading.ALIVE:
        return replace(state, verdict=Verdict.PAUSED, gone_s=None, accepted=True, probe_at_s=now_s + rest_s)
    if not state.joined:
        return replace(state, verdict=Verdict.CANNOT_TELL, gone_s=None, probe_at_s=now_s + rest_s)
    if reading is Reading.BLIND:
        return replace(state, verdict=Verdict.CANNOT_TELL, gone_s=None, probe_at_s=next_s)
    if state.gone_s is None:
        return replace(state, gone_s=ended.started_s, probe_at_s=next_s)
    span_s = rules.restart_s if state.accepted else rules.gap_s
    # An agent that only lost its connection is back within a beat, so a death needs a silence of its own too.
    if ended.started_s - state.gone_s >= span_s and now_s - state.heard_s >= rules.floor_s:
        return replace(state, verdict=Verdict.DEAD, probe_at_s=inf)
    return replace(state, probe_at_s=next_s)


def change(before: NodeState, after: NodeState) -> NoticeKind | None:
    """What to tell about the step from one state to the next."""
    if after.joined and not before.joined:
        return NoticeKind.JOINED
    if after.verdict is before.verdict or after.verdict is Verdict.AWAITED:
        return None
    return NoticeKind.BACK if after.verdict is Verdict.LIVE else NoticeKind(after.verdict.value)


def describe(state: NodeState, ended: Round, now_s: float) -> str:
    """The evidence of a round, for people."""
    asked = "; ".join(f"{who}: {outcome}" for who, outcome in (("head", ended.own), *ended.opinions))
    silence = f"{'silent' if state.joined else 'not joined'} for {now_s - state.heard_s:.1f} s"
    blind = read(ended) is Reading.BLIND
    return f"{silence}, slurmd port ({asked})" + (", and nobody else is heard either" if blind else "")


def _doubted(state: NodeState, now_s: float) -> NodeState:
    return replace(state, verdict=Verdict.SUSPECT, doubted_s=now_s, probe_at_s=now_s, gone_s=None)
