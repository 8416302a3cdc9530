"""What the agents told of the ranks of one attempt, as `liveness` judges it. Pure; times are monotonic seconds.

A beat's content comes from the training, whose user may write anything there: everything is bounded and of its type.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from msgspec.structs import replace

from fleetctl.launch.liveness import Learned, Phase, Rank, learn

_MOST_RANKS = 1 << 20
_MOST_TOLD = 64  # of one beat: hearts.MOST_TOLD
_MOST_AGE_S = 30 * 86400.0
_AGAIN_S = 0.5  # a beat that is newer by more than the network's jitter; agents look every second
_NODE_SILENT_S = 10.0  # agents tell every second
_FLOWS_BYTES_S = 1 << 20  # a training that communicates moves far more, and a node's own chatter far less (ours)
_MOVES_BYTES = 1 << 20  # read or written by ranks between two looks: far more than waiting ones do (ours)
_PHASES = {phase.value: phase for phase in Phase}
_MOST_NAMES = 16


class Table:
    """The ranks of one attempt on its `nodes`, as they were heard."""

    def __init__(self, attempt: str, nodes: Sequence[str], learned: Learned | None = None) -> None:
        self._attempt, self._nodes = attempt, tuple(nodes)
        self._ranks: dict[tuple[str, int], Rank] = {}  # two groups of a hetjob may count alike
        self._told_s: dict[str, float] = {}  # when each node was heard last
        self._world: int | None = None
        self.learned = learned or Learned()
        self.flowed_s: float | None = None  # when a network card or a rank last moved more than chatter
        self.kept: dict[str, tuple[str, ...]] = {}  # names of evidence, by the node that gathered it

    @property
    def heard(self) -> int:
        return len(self._ranks)

    @property
    def world(self) -> int | None:
        """How many ranks there are, as they say."""
        return max(self._world, self.heard) if self._world is not None else None

    def take(self, node: str, raw: object, now_s: float) -> None:
        """The word of one node. What is not of this attempt, or not of our language, counts as not said."""
        if not isinstance(raw, dict) or raw.get("attempt") != self._attempt:
            return
        self._told_s[node] = now_s
        self._world = _whole(raw.get("world"), 1, _MOST_RANKS) or self._world
        flows, moves = (_whole(raw.get(key), 0, 1 << 62) or 0 for key in ("nic", "io"))
        if flows >= _FLOWS_BYTES_S or moves > _MOVES_BYTES:
            self.flowed_s = now_s
        kept, told = raw.get("kept"), raw.get("ranks")
        if isinstance(kept, list) and kept:
            self.kept[node] = tuple(name[:200] for name in kept[:_MOST_NAMES] if isinstance(name, str))
        has_learned = False
        for one in told[:_MOST_TOLD] if isinstance(told, list) else ():
            rank = _rank(node, one, now_s)
            if rank is None:
                continue
            before = self._ranks.get((node, rank.rank))
            if before is None and len(self._ranks) >= _MOST_RANKS:
                continue
            self._ranks[node, rank.rank] = rank
            if before is not None and before.training_step is not None and rank.training_step is None:
                self.learned = Learned(longest_s=self.learned.longest_s)  # its program started anew, as torchrun does
                continue
            if before is not None and not has_learned and rank.beat_at_s > before.beat_at_s + _AGAIN_S:
                has_learned = before.phase is Phase.STEP  # one of a node is enough, and thousands a second cost time
                self.learned = learn(self.learned, before, rank)

    def wake(self, slept_s: float) -> None:
        """We stood still: what was not heard meanwhile says nothing. Agents say again how old the beats are."""
        self._ranks = {key: replace(rank, beat_at_s=rank.beat_at_s + slept_s) for key, rank in self._ranks.items()}
        self._told_s = {node: told_s + slept_s for node, told_s in self._told_s.items()}

    def ranks(self, now_s: float, linked: frozenset[str], progress_at_s: float | None) -> tuple[Rank, ...]:
        """For a verdict. `linked` are the nodes whose agents have a connection, or need none.

        A node that is linked and says nothing stands still as a whole. The ranks of one that lost its agent may do
        anything, and so may those of one that never told: one rank, -1, stands for these, and for a training that only
        tells its progress, at `progress_at_s` for the last time, or that is not heard on some of its ranks. Where all
        processes are gone, others may be about to begin, as under torchrun.
        """
        silent = {node for node, told_s in self._told_s.items() if now_s - told_s > _NODE_SILENT_S}
        found = []
        for rank in self._ranks.values():
            if rank.node in silent:
                rank = replace(rank, state="F") if rank.node in linked else replace(rank, phase=Phase.UNTOLD)
            found.append(rank)
        if all(rank.state == "X" for rank in found):
            found = [replace(rank, phase=Phase.UNTOLD) for rank in found]
        newest_s = max((rank.beat_at_s for rank in found), default=None)
        times_s = [at_s for at_s in (newest_s, progress_at_s) if at_s is not None]
        is_partly = 1 < len(found) < (self._world or 0)
        unseen = (silent - linked) | (set(self._nodes) - self._told_s.keys())
        if times_s and (not found or is_partly or unseen):
            found.append(Rank(-1, "", Phase.UNTOLD, None, max(times_s)))
        return tuple(found)


def _rank(node: str, told: object, now_s: float) -> Rank | None:
    if not isinstance(told, list) or len(told) != 5:
        return None
    number, phase, step = _whole(told[0], 0, _MOST_RANKS), told[1], _whole(told[2], -(1 << 62), 1 << 62)
    age_s, state = told[3], told[4]
    if number is None or not isinstance(phase, str) or phase not in _PHASES:
        return None
    if not isinstance(age_s, int | float) or isinstance(age_s, bool) or not isfinite(age_s):
        return None
    state = state if isinstance(state, str) and len(state) == 1 else "?"
    return Rank(number, node, _PHASES[phase], step, now_s - min(max(age_s, 0.0), _MOST_AGE_S), state)


def _whole(value: Any, least: int, most: int) -> int | None:
    return value if type(value) is int and least <= value <= most else None
