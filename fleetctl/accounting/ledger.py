"""The ledger of a run's wall time: every millisecond from the first submission to the end has one class. Pure.

DEFINITIONS says what each class means; users read the same words. Beside them: a training step of which only the number
is told has its moment between the told ones around it (`estimated`). Where clocks disagree, Slurm's records bound what
the nodes tell. An open record counts up to when it was last seen alive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from fleetctl.accounting.model import Window
from fleetctl.accounting.run_facts import RunFacts
from fleetctl.accounting.spans import Span, Spent, clipped, is_hidden, total
from fleetctl.accounting.timeline import Region, Timeline, timeline
from fleetctl.rundir.model import AttemptNumber

DEFINITIONS: Mapping[Spent, str] = {
    Spent.QUEUE: "from the first submission to the first start, whatever it waits for; later, from when Slurm could "
    "start it again to when it does",
    Spent.STARTUP: "from a start, or from the end of the attempt before it in the same job, until its first training "
    "step is done; all of an attempt that makes none, where others tell of theirs",
    Spent.PRODUCTIVE: "training whose result is kept; while the run goes on, provisionally, also what came after its "
    "newest checkpoint",
    Spent.STALL: "the training waits for a checkpoint to be saved",
    Spent.LOST: "training after the checkpoint from which a later attempt resumed, in whichever attempt it lies, "
    "charged to the interruption that forced it; after the last attempt's end, unless it finished, what no checkpoint "
    "holds",
    Spent.HANG: "from the last training step told to the seen end of an attempt that failed or lost a node, or that "
    "was ended from outside after ten silent minutes",
    Spent.REQUEUE: "from the end of a job's time on nodes until Slurm can start it again, a wait for a person included",
    Spent.TEARDOWN: "from the end of the last attempt until its nodes are free; also from the last step of an attempt "
    "that was told to end or ended well",
    Spent.SUSPENDED: "suspended by Slurm, which says how long and not when: it is taken from the end of the productive "
    "time, then of the untold, then of the rest",
    Spent.UNTOLD: "nobody tells what this part of an attempt did, or a job of which no attempt is known: neither "
    "productive nor lost",
    Spent.SPARE: "GPUs held and not used by the training, of nodes beyond those of its attempt: spare or dead ones",
}
ETTR = (
    "productive time over wall time from the first submission to the end, queue included; what is untold does not "
    "count as productive, and where nothing is told it is unknown"
)


class WallLedger(Struct, frozen=True):
    """Milliseconds of each class; they add up to `wall_ms`. `ettr` None: nothing tells of the training.

    `unsaved_ms` of the productive time came after the newest checkpoint; None: not known which that is, or the run does
    not train now. `silent_ms`: how long the training had told nothing when it was last seen alive; None: it never told
    anything, or the run does not train now.
    """

    ms: Mapping[Spent, int]
    wall_ms: int
    ettr: float | None
    provisional: bool
    estimated: bool
    unsaved_ms: int | None
    silent_ms: int | None

    def known_ms(self, spent: Spent) -> int | None:
        """As `ms`; None where nobody tells how much of the time it was."""
        return None if self.ettr is None and is_hidden(self.ms, spent) else self.ms[spent]


class Cost(Struct, frozen=True):
    """What one interruption cost, in milliseconds; None: not known, or not yet.

    `detection_ms` (D): from the last step to the seen end. `restart_ms` (R): from there to the first step of the next
    attempt, or to that one's end if it made none. `lost_ms` (W): work that was done again, or that nothing kept.
    """

    number: AttemptNumber  # the attempt that it ended
    at_ms: int
    cause: str
    by_person: bool | None
    detection_ms: int | None
    restart_ms: int | None
    lost_ms: int | None


def wall_ledger(facts: RunFacts, as_of_ms: int, window: Window | None = None) -> WallLedger:
    """`as_of_ms`: up to when Slurm's records are known. The ledgers of adjacent windows add up to that of both."""
    return wall_of(timeline(facts, as_of_ms), window)


def wall_of(line: Timeline, window: Window | None = None) -> WallLedger:
    spans = clipped(line.spans, window)
    ms, wall_ms = total(spans), sum(one.ms for one in spans)
    ettr = ms[Spent.PRODUCTIVE] / wall_ms if line.is_told and wall_ms else None
    return WallLedger(ms, wall_ms, ettr, line.provisional, line.estimated, line.unsaved_ms, line.silent_ms)


def interruption_costs(facts: RunFacts, line: Timeline) -> tuple[Cost, ...]:
    """One for each attempt that ended before the run was finished, by number. `line` is the timeline of `facts`."""
    said = {one.number: one for one in facts.interruptions}
    numbers = sorted(one.number for one in facts.attempts)
    ended_ms = {one.number: one.ended_ms or one.started_ms for one in facts.attempts}
    took = {loss.charged for losses in line.kept.losses.values() for loss in losses}
    hangs, lost = _sums(line.spans)
    told = min((number for number, region in line.regions.items() if region.told.points), default=None)

    def knows(number: AttemptNumber) -> bool:
        """Whether it is known what the next attempt resumed from, and what there was to lose."""
        return told is not None and told <= number and number in line.kept.knows_losses

    costs = []
    for number, later in zip(numbers, (*numbers, None)[1:], strict=True):
        if number not in said and later is None and number not in took:
            continue
        row, region = said.get(number), line.regions.get(number)
        costs.append(
            Cost(
                number=number,
                at_ms=row.at_ms if row else region.end_ms if region else ended_ms[number],
                cause=row.cause if row else "",
                by_person=row.by_person if row else None,
                detection_ms=hangs.get(number, 0) if region and region.told.last else None,
                restart_ms=None if later is None else _restart_ms(line, region, line.regions.get(later), later),
                lost_ms=lost.get(number, 0) if knows(number) else None,
            )
        )
    return tuple(costs)


def _sums(spans: Iterable[Span]) -> tuple[dict[AttemptNumber, int], dict[AttemptNumber, int]]:
    """The hang of each attempt, and what each interruption took."""
    hangs: dict[AttemptNumber, int] = {}
    lost: dict[AttemptNumber, int] = {}
    for one in spans:
        if one.spent is Spent.HANG and one.attempt is not None:
            hangs[one.attempt] = hangs.get(one.attempt, 0) + one.ms
        if one.spent is Spent.LOST and one.charged is not None:
            lost[one.charged] = lost.get(one.charged, 0) + one.ms
    return hangs, lost


def _restart_ms(line: Timeline, ended: Region | None, then: Region | None, later: AttemptNumber) -> int | None:
    if ended is None or then is None:
        return None
    if then.first_ms is not None:
        return max(0, then.first_ms - ended.end_ms)
    if then.told.points or not line.is_told or line.kept.runs == later:
        return None
    return max(0, then.end_ms - ended.end_ms)
