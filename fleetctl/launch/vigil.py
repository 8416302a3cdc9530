"""Watches over the ranks of one attempt: hears of them, tells of them, and finds the attempt hung."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from threading import Thread

from msgspec import Struct

from fleetctl.launch.environment import beats_folder
from fleetctl.launch.hearts import Hearts
from fleetctl.launch.lead import Lead
from fleetctl.launch.liveness import FLOOR_S, Judged, Learned, Phase, Verdict, judge, longer, stands_still
from fleetctl.launch.model import step_nodes
from fleetctl.launch.pulse import Pulses, Seen
from fleetctl.launch.ranks import Table
from fleetctl.launch.watching import NodeWatch
from fleetctl.rundir.files import read_end
from fleetctl.rundir.model import AttemptNumber, attempt_name
from fleetctl.rundir.pulse import Silent
from fleetctl.slurm.hosts import expand

FLOOR = "FLEETCTL_HANG_FLOOR_S"  # in the environment of the batch script: less than 300 for tests, more for peace
_LOOK_S = 1.0  # agents tell as often
_OWN_PAUSE_S = 5.0  # longer than any work between two looks but a call to a Slurm that is away
_LOG_S = 5.0  # between two looks at the output's size, once it is silent
_LOG_BYTES = 64 << 10
_TAIL = "output-end.log"
_GATHER_S = 20.0  # that the end of a hung attempt waits for its evidence
_HELPERS = 3  # nodes that say what their ranks wait in, besides the suspect one
_MOST_GATHERED = 3  # suspicions of one attempt for which evidence is gathered
_MOST_TOLD = 16  # silent ranks in a pulse


class Hang(Struct, frozen=True):
    """An attempt that was found hung; `node` "" and `rank` None where nobody can be blamed."""

    node: str
    rank: int | None
    phase: Phase
    silent_s: float
    limit_s: float
    evidence: tuple[str, ...]


class Vigil:
    """One attempt's. Its own node it looks at itself; the others' agents tell."""

    def __init__(
        self,
        lead: Lead,
        number: AttemptNumber,
        watch: NodeWatch,
        pulses: Pulses,
        nodes: tuple[str, ...],
        learned: Learned | None = None,
    ) -> None:
        """`learned` is what an earlier attempt leaves."""
        self._lead, self._number, self._watch, self._pulses = lead, number, watch, pulses
        self._clock, self._name = lead.world.clock, attempt_name(number)
        now_s = self._clock.monotonic_s()
        self._floor_s = floor_in(lead.world.environ)
        self._table = Table(self._name, nodes or _everywhere(lead), learned)
        self._doubted_s = 0.0  # the silence of a hang between steps that no process standing still explains
        self._own = Hearts(str(lead.attempts.folder))
        place = {"t": "hearts", "attempt": self._name, "folder": beats_folder(lead.run.run_id, self._name, lead.job)}
        self._own.heed(place)
        watch.tell_all(**place)
        self._folder = lead.run.attempt_dir(self._name, lead.job.task)
        self._looked_s = now_s
        self._suspected: tuple[float, datetime] | None = None
        self._asked: frozenset[str] = frozenset()  # nodes that gather evidence for the present suspicion
        self._gathered = 0
        self._log = _Growth(self._folder / "output.log")
        self._progress: tuple[object, float | None] = (None, None)  # the newest that was told, and when it was seen

    def tend(self) -> Hang | None:
        """To be called often. A hang once it is certain, and its evidence is kept or took too long."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s < _LOOK_S:
            return None
        if now_s - self._looked_s > _OWN_PAUSE_S:
            self._wake(now_s - self._looked_s)
        self._looked_s = now_s
        self._hear(now_s)
        judged = self._judge(now_s)
        self._suspect(judged, now_s)
        self._tell(judged)
        if judged.verdict is not Verdict.HUNG or self._is_gathering(now_s):
            return None
        longest, blamed = judged.quiet[-1], judged.blamed
        if judged.phase is Phase.STEP and (blamed is None or not stands_still(blamed)):
            self._doubted_s = longest.silent_s
        kept = [name for names in self._table.kept.values() for name in names]
        return Hang(
            node=judged.node,
            rank=blamed.rank if blamed is not None and blamed.rank >= 0 else None,
            phase=judged.phase,
            silent_s=round(longest.silent_s, 1),
            limit_s=round(longest.limit_s, 1),
            evidence=(*([_TAIL] if (self._folder / "evidence" / _TAIL).exists() else ()), *sorted(kept)),
        )

    def close(self) -> None:
        """The attempt is over."""
        self._own.close()

    def learned(self) -> Learned:
        """For the next attempt: the longest gap between steps. What was ended as hung without proof may have been work
        that nobody marked, and must not be ended so again and again: its silence counts, too."""
        gap_s = max(self._doubted_s, self._table.learned.longest_s.get(Phase.STEP, 0.0))
        return longer(Learned(), Phase.STEP, gap_s)

    def _wake(self, slept_s: float) -> None:
        self._table.wake(slept_s)
        told, seen_s = self._progress
        self._progress = told, seen_s + slept_s if seen_s is not None else None

    def _hear(self, now_s: float) -> None:
        host = self._lead.job.host
        for node, raw in {**self._watch.hearts(), host: self._own.told(now_s).get("hearts")}.items():
            self._table.take(node, raw, now_s)
        progress = self._pulses.progress
        if progress is not None and progress.at != self._progress[0]:
            self._progress = progress.at, now_s

    def _judge(self, now_s: float) -> Judged:
        linked = frozenset({self._lead.job.host, *self._watch.linked()})
        ranks = self._table.ranks(now_s, linked, self._progress[1])
        newest_s = max((rank.beat_at_s for rank in ranks), default=now_s)
        grew_s = self._log.look(now_s) if now_s - newest_s > _LOG_S else None
        signs = [at_s for at_s in (grew_s, self._table.flowed_s) if at_s is not None]
        progress = self._pulses.progress
        if progress is not None and progress.done:
            return Judged(Verdict.LIVE, Phase.END)  # what it still does is for it to know
        sign_at_s = max(signs, default=None)
        return judge(ranks, self._table.learned, now_s, sign_at_s=sign_at_s, floor_s=self._floor_s)

    def _suspect(self, judged: Judged, now_s: float) -> None:
        if judged.verdict is Verdict.LIVE:
            self._suspected, self._asked = None, frozenset()
        elif self._suspected is None:
            self._suspected = now_s, self._clock.now()
            if self._gathered < _MOST_GATHERED:
                self._gathered += 1
                self._gather(judged)

    def _gather(self, judged: Judged) -> None:
        """Ask for evidence: of the suspect rank first, else of the longest silent; and what others wait in."""
        self._lead.world.say(f"fleetctl: attempt {self._name} may hang ({judged.phase}): evidence is gathered")
        with contextlib.suppress(RuntimeError):  # no more threads: then without
            Thread(target=self._keep_log, daemon=True).start()
        first = [judged.blamed] if judged.blamed is not None else []
        by_node: dict[str, int] = {}
        for rank in (*first, *(quiet.rank for quiet in judged.quiet)):
            if rank.node and len(by_node) <= _HELPERS:
                by_node.setdefault(rank.node, rank.rank)
        for node, number in by_node.items():
            order = {"t": "gather", "attempt": self._name, "ranks": [number]}
            if node == self._lead.job.host:
                self._own.heed(order)
            else:
                self._watch.tell(node, **order)
        self._asked = frozenset(by_node)

    def _keep_log(self) -> None:
        """In a thread: a file system may hang, and be why all of it does."""
        with contextlib.suppress(OSError):
            tail = read_end(self._folder / "output.log", _LOG_BYTES)
            (self._folder / "evidence").mkdir(exist_ok=True)
            (self._folder / "evidence" / _TAIL).write_bytes(tail)

    def _is_gathering(self, now_s: float) -> bool:
        waits = bool(self._asked - self._table.kept.keys())
        return waits and self._suspected is not None and now_s - self._suspected[0] < _GATHER_S

    def _tell(self, judged: Judged) -> None:
        quiet = [] if judged.verdict is Verdict.LIVE else [one for one in judged.quiet if one.rank.rank >= 0]
        quiet.sort(key=lambda one: one.rank is not judged.blamed)
        steps = [one.rank.training_step for one in judged.quiet if one.rank.training_step is not None]
        self._pulses.tell(
            Seen(
                phase=judged.phase,
                training_step=max(steps, default=None),
                ranks=self._table.world if self._table.heard else None,
                heard=self._table.heard,
                silent=tuple(
                    Silent(one.rank.rank, one.rank.node, one.rank.phase, round(one.silent_s, 1), round(one.limit_s, 1))
                    for one in quiet[:_MOST_TOLD]
                ),
                suspected_at=self._suspected[1] if self._suspected is not None else None,
                hung=judged.verdict is Verdict.HUNG,
            )
        )


class _Growth:
    """When a file was last seen to grow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size: int | None = None
        self._grew_s: float | None = None
        self._look_at_s = -math.inf

    def look(self, now_s: float) -> float | None:
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + _LOG_S
            with contextlib.suppress(OSError):
                size = os.stat(self._path).st_size
                if self._size is not None and size > self._size:
                    self._grew_s = now_s
                self._size = size
        return self._grew_s


def _everywhere(lead: Lead) -> tuple[str, ...]:
    """All nodes of the job's groups, where Slurm places the steps."""
    lists = {step_nodes(lead.world.environ, index) for index in range(len(lead.order.steps))}
    return tuple(sorted({node for nodes in lists if nodes for node in expand(nodes)}))


def floor_in(environ: Mapping[str, str]) -> float:
    """The shortest silence between training steps that is a hang, in seconds: the site's or the user's, else ours."""
    with contextlib.suppress(ValueError):
        floor_s = float(environ.get(FLOOR, ""))
        if floor_s > 0:
            return floor_s
    return FLOOR_S
