"""Does the training hang? Pure: what the ranks told goes in, a verdict comes out.

Each rank says its phase and, with every beat, that it goes on. A run hangs only if *every* rank that takes part has
been silent for longer than its phase explains: while one rank saves, loads, compiles or evaluates, the others wait for
it. Ranks that never tell of training steps while others do (a program that tells on rank 0 alone) take no part.

The limits are learned within the attempt. Between two training steps: ten times the median and five times the longest
gap (of the attempts before, too: a program may not mark its saves), at least five minutes. Any other phase: five times
the longest seen (NVRx, ft_launcher: 5.0 times the longest seen), within a floor and a ceiling of its own; before one
was seen, the ceiling. Where nobody tells a phase, an hour (NVRx: 60 min before the first heartbeat). Where nothing was
ever told, nothing is known, and nothing hangs.

Output that still grows, network traffic, and bytes that the ranks read or write put a verdict off, up to three times
the limit and not for ever: with one rank dead the others can spin and print for hours (pytorch#42107), and so CPU time
says nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from statistics import median

from msgspec import Struct


class Phase(StrEnum):
    """Where a rank is. All but the last are told by fleetctl.train (beats.py)."""

    START = "start"  # before the training knows what it resumes from
    FIRST_STEP = "first_step"  # until its first training step is done: building, compiling
    STEP = "step"
    SAVE = "save"
    LOAD = "load"
    EVALUATION = "evaluation"
    END = "end"  # after its last training step
    UNTOLD = "untold"  # nobody knows


class Verdict(StrEnum):
    """What is held of the training."""

    LIVE = "live"
    SUSPECT = "suspect"  # soon over its limit: evidence is gathered
    HUNG = "hung"


class Rank(Struct, frozen=True):
    """One rank. `beat_at_s` is when it was last heard, on the monotonic clock of the head; `state` is the letter of its
    process (proc(5)), X where that is gone, F where its whole node stands still, ? where it is not known."""

    rank: int
    node: str
    phase: Phase
    training_step: int | None
    beat_at_s: float
    state: str = "?"


class Learned(Struct, frozen=True):
    """What this attempt has shown: the newest times between two beats in the step phase, after the first ones; how many
    there were in all; and the longest silence in each phase that ended."""

    steps_s: tuple[float, ...] = ()
    count: int = 0
    longest_s: Mapping[Phase, float] = {}


class Quiet(Struct, frozen=True):
    """A rank, how long it is silent, and how long its phase explains that."""

    rank: Rank
    silent_s: float
    limit_s: float


class Judged(Struct, frozen=True):
    """`quiet` are those that take part, the longest silent first; `blamed` is the one the others wait for, if that can
    be told, and `node` its node, where nothing speaks against another one."""

    verdict: Verdict
    phase: Phase
    quiet: tuple[Quiet, ...] = ()
    blamed: Rank | None = None
    node: str = ""


FLOOR_S = 300.0  # the issue's: at least five minutes between two training steps
_STEPS, _LONGEST = 10.0, 5.0
_OVER_CEILING = 1.5  # times the longest seen, where that came near the ceiling
_PATIENCE = 3.0  # times the limit, while the output grows or the network carries something
_SUSPECT_S = 30.0  # before the limit, for the evidence; for a short limit, its second half
_WARM_UP = 3  # the first intervals say little (NVRx leaves out the first 5 iterations) ...
_ENOUGH = 3  # ... and so many after them must be there
_KEPT = 64
_STOPPED = frozenset("TtZXF")  # such a rank does nothing: the others wait for it, not it for them

# NVRx's sections: setup 900 s, checkpoint 300 s; ours are longer, since storage that is shared is slow for hours.
_FLOORS_S: Mapping[Phase, float] = {
    Phase.START: 900.0,
    Phase.FIRST_STEP: 900.0,
    Phase.SAVE: 600.0,
    Phase.LOAD: 900.0,
    Phase.EVALUATION: 900.0,
    Phase.END: 1800.0,
}
_HOUR_S = 3600.0  # NVRx: 60 min before the first heartbeat, 45 min after it
_CEILINGS_S: Mapping[Phase, float] = {
    Phase.EVALUATION: 4 * _HOUR_S,  # ours: what a user marks so may be any work, and takes as long as it takes
    Phase.SAVE: 2 * _HOUR_S,  # ours: storage that fails over, with a whole state behind it
    Phase.LOAD: 2 * _HOUR_S,
}


def limit_s(phase: Phase, learned: Learned, floor_s: float = FLOOR_S) -> float:
    """How long a silence in this phase is explained; never less than `floor_s`."""
    ceiling_s = _CEILINGS_S.get(phase, _HOUR_S)
    if phase is Phase.STEP and len(learned.steps_s) >= _ENOUGH:
        compiled_s = learned.longest_s.get(Phase.FIRST_STEP, 0.0)  # and may be again, for another shape
        known_s = _between(learned.longest_s.get(phase, 0.0), 0.0, ceiling_s)
        return max(floor_s, _STEPS * median(learned.steps_s), known_s, _OVER_CEILING * compiled_s)
    longest_s = learned.longest_s.get(phase)
    if phase in (Phase.STEP, Phase.UNTOLD) or longest_s is None:
        return max(floor_s, ceiling_s, _OVER_CEILING * (longest_s or 0.0))
    return max(floor_s, _between(longest_s, _FLOORS_S[phase], ceiling_s))


def _between(longest_s: float, least_s: float, ceiling_s: float) -> float:
    return max(min(max(_LONGEST * longest_s, least_s), ceiling_s), _OVER_CEILING * longest_s)


def learn(learned: Learned, before: Rank, after: Rank) -> Learned:
    """A rank was heard again after a silence: how long one can be in that phase."""
    lasted_s = after.beat_at_s - before.beat_at_s
    if before.phase is Phase.STEP:
        if after.phase is not Phase.STEP:
            return learned
        steps_s = (*learned.steps_s, lasted_s)[-_KEPT:] if learned.count >= _WARM_UP else ()
        learned = Learned(steps_s, learned.count + 1, learned.longest_s)
    return longer(learned, before.phase, lasted_s)


def longer(learned: Learned, phase: Phase, lasted_s: float) -> Learned:
    """A silence in this phase may last so long, too."""
    if lasted_s <= learned.longest_s.get(phase, 0.0):
        return learned
    return Learned(learned.steps_s, learned.count, {**learned.longest_s, phase: lasted_s})


def judge(
    ranks: Sequence[Rank], learned: Learned, now_s: float, *, sign_at_s: float | None = None, floor_s: float = FLOOR_S
) -> Judged:
    """`sign_at_s` is when the output last grew, or the network or the ranks last moved something."""
    taking = taking_part(ranks, learned)
    if not taking:
        return Judged(Verdict.LIVE, Phase.UNTOLD)
    limits_s = {phase: limit_s(phase, learned, floor_s) for phase in {rank.phase for rank in taking}}
    quiet = [Quiet(rank, now_s - rank.beat_at_s, limits_s[rank.phase]) for rank in taking]
    quiet.sort(key=lambda one: (-one.silent_s, one.rank.rank))
    ordered = tuple(quiet)
    if all(_is_over(one, now_s, sign_at_s) for one in quiet):
        verdict = Verdict.HUNG
    elif all(one.silent_s > max(one.limit_s - _SUSPECT_S, one.limit_s / 2) for one in quiet):
        verdict = Verdict.SUSPECT
    else:
        return Judged(Verdict.LIVE, _main_phase(taking), ordered)
    blamed, node = blame(ranks, taking)
    return Judged(verdict, blamed.phase if blamed is not None else _main_phase(taking), ordered, blamed, node)


def taking_part(ranks: Sequence[Rank], learned: Learned) -> tuple[Rank, ...]:
    """Without those that have told no training step after others have told several: they never do. A rank that has
    loaded and told nothing since (it uses the Checkpointer alone) is in no phase that anybody knows."""
    early = (Phase.START, Phase.FIRST_STEP) if learned.count >= _WARM_UP else ()
    return tuple(
        rank
        for rank in ranks
        if rank.training_step is not None
        or not (rank.phase in early or (rank.phase is Phase.UNTOLD and rank.rank >= 0))
    )


def blame(ranks: Sequence[Rank], taking: Sequence[Rank]) -> tuple[Rank | None, str]:
    """Of all `ranks`, of which `taking` take part, the one that the others wait for, and its node; None and "" where
    that cannot be told.

    Its process stands still, or it is in a phase of its own while the others are between training steps, or it has made
    fewer training steps than they. All alike: nobody is blamed, and never more than half of them.
    """
    newest = max((rank.training_step for rank in taking if rank.training_step is not None), default=None)
    stopped = [rank for rank in ranks if stands_still(rank)]
    elsewhere = [rank for rank in taking if rank.phase not in (Phase.STEP, Phase.UNTOLD, Phase.END)]
    behind = [rank for rank in taking if newest is not None and (rank.training_step or 0) < newest]
    for found, of in ((stopped, ranks), (elsewhere, taking), (behind, taking)):
        if 0 < 2 * len(found) <= len(of):
            first = min(found, key=lambda rank: (rank.training_step or 0, rank.beat_at_s, rank.rank))
            nodes = {rank.node for rank in found}
            return first, first.node if len(nodes) == 1 else ""
    return None, ""


def stands_still(rank: Rank) -> bool:
    """Whether it can do nothing, for certain. One that has ended and is gone is not waited for."""
    return rank.state in _STOPPED and not (rank.phase is Phase.END and rank.state in "ZX")


def _is_over(one: Quiet, now_s: float, sign_at_s: float | None) -> bool:
    if one.silent_s <= one.limit_s:
        return False
    has_sign = sign_at_s is not None and now_s - sign_at_s <= one.limit_s / 2
    return not has_sign or one.silent_s > _PATIENCE * one.limit_s


def _main_phase(ranks: Iterable[Rank]) -> Phase:
    """The phase of most of them; of several, the first one in a training."""
    phases = [rank.phase for rank in ranks]
    return max(Phase, key=lambda phase: (phases.count(phase), -list(Phase).index(phase)))
