"""A run's time from its first submission to its end, as spans without gaps; ledger.py says what they mean. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fleetctl.accounting.run_facts import AttemptFacts, RunFacts, SaveFacts
from fleetctl.accounting.spans import Span, Spent, clamp, painted, taken, touched, within
from fleetctl.accounting.stays import Stay, held, stays_of, waited
from fleetctl.accounting.work import Kept, Loss, Told, began, kept_of, saves_by_attempt, told_by
from fleetctl.rundir.model import AttemptNumber

# A collective's own time-out (PyTorch's for NCCL): a silence so long is no slow step and no slow end
_SILENCE_MS = 600_000
_FAILED = frozenset({"failed", "node_lost", "hung"})  # rundir.model.Ending
_OWN_END = frozenset({"finished", "stopped_early", "saved"})  # it may save and export for as long as it likes
# States of a record that was ended from outside, or well
_TOLD = frozenset({"CANCELLED", "PREEMPTED", "REQUEUED", "TIMEOUT", "DEADLINE", "COMPLETED", "REVOKED", "RESIZING"})
_WORK = (Spent.PRODUCTIVE, Spent.LOST, Spent.UNTOLD)  # what a save whose moment nobody knows made wait
_HELD = (Spent.PRODUCTIVE, Spent.UNTOLD, Spent.LOST, Spent.STALL, Spent.STARTUP, Spent.HANG, Spent.TEARDOWN)


class Region(Struct, frozen=True):
    """When an attempt lasted within its stay, and what it told, in that stay's time."""

    start_ms: int
    end_ms: int
    told: Told

    @property
    def first_ms(self) -> int | None:
        """When its first training step had been done; None: it made none, or did not tell."""
        return self.told.points[0].at_ms if self.told.first else None


class Timeline(Struct, frozen=True):
    """`is_told`: some attempt told of its training. `provisional`: the run goes on, or nobody knows whether it does.
    `unsaved_ms`: productive time after the newest checkpoint; None: not known, or nothing can be lost any more.
    `silent_ms`: from the last sign of the training until it was last seen alive; None: none, or it does not run."""

    spans: tuple[Span, ...]
    regions: Mapping[AttemptNumber, Region]
    kept: Kept
    is_told: bool
    provisional: bool
    estimated: bool
    unsaved_ms: int | None
    silent_ms: int | None


def timeline(facts: RunFacts, as_of_ms: int) -> Timeline:
    """`as_of_ms`: up to when Slurm's records are known."""
    facts = _in_order(facts)
    saves = saves_by_attempt(facts)
    told = {one.number: told_by(one, saves.get(one.number, ())) for one in facts.attempts}
    kept, is_told = kept_of(facts, told), any(one.points for one in told.values())
    spans: list[Span] = []
    regions: dict[AttemptNumber, Region] = {}
    stays = stays_of(facts)
    submitted = [one.submitted_ms for one in facts.records if one.submitted_ms is not None]
    at_ms = min(submitted, default=facts.created_ms)
    for number, stay in enumerate(stays):
        spans += _gap(at_ms, stay.start_ms, is_first=number == 0)
        inside = _regions(stay, told)
        regions |= inside
        spans += _stay_spans(stay, inside, saves, kept, is_told=is_told)
        at_ms = stay.end_ms
    waits = [waited(one, as_of_ms) for one in facts.records]
    spans += _gap(at_ms, max((at_ms, *(until_ms for _, until_ms in waits))), is_first=not stays)
    queued = [(since_ms, until_ms) for since_ms, until_ms in waits if since_ms is not None]
    spans = _repainted(spans, (Spent.REQUEUE,), queued, Spent.QUEUE, None)
    spans = _suspended(facts, spans)
    running = None if kept.runs is None else regions.get(kept.runs)
    is_open = any(one.ended_ms is None and one.purged_ms is None for one in facts.records)
    return Timeline(
        spans=tuple(spans),
        regions=regions,
        kept=kept,
        is_told=is_told,
        provisional=is_open or facts.finished is None,
        estimated=_is_estimated(regions, kept),
        unsaved_ms=_unsaved_ms(spans, regions, kept) if running is not None and running.told.points else None,
        silent_ms=None if running is None or running.told.last_ms is None else running.end_ms - running.told.last_ms,
    )


def _in_order(facts: RunFacts) -> RunFacts:
    return replace(
        facts,
        records=tuple(sorted(facts.records, key=lambda one: (held(one) or (0, 0), one.record))),
        attempts=tuple(sorted(facts.attempts, key=lambda one: one.number)),
        saves=tuple(sorted(facts.saves, key=lambda one: (one.number, one.sequence))),
    )


def _gap(start_ms: int, end_ms: int, *, is_first: bool) -> list[Span]:
    """The time between two stays."""
    return [Span(start_ms, end_ms, Spent.QUEUE if is_first else Spent.REQUEUE)] if start_ms < end_ms else []


def _regions(stay: Stay, told: Mapping[AttemptNumber, Told]) -> dict[AttemptNumber, Region]:
    """One after the other: an attempt that a later one took over from had ended then."""
    found: dict[AttemptNumber, Region] = {}
    at_ms = stay.start_ms
    for attempt, later in zip(stay.attempts, (*stay.attempts, None)[1:], strict=True):
        start_ms = clamp(attempt.started_ms, at_ms, stay.end_ms)
        ends = [end for end in (attempt.ended_ms, None if later is None else later.started_ms) if end is not None]
        at_ms = clamp(min(ends, default=stay.end_ms), start_ms, stay.end_ms)
        found[attempt.number] = Region(start_ms, at_ms, told[attempt.number].within(start_ms, at_ms))
    return found


def _stay_spans(
    stay: Stay,
    regions: Mapping[AttemptNumber, Region],
    saves: Mapping[AttemptNumber, Sequence[SaveFacts]],
    kept: Kept,
    *,
    is_told: bool,
) -> list[Span]:
    spans: list[Span] = []
    at_ms = stay.start_ms
    for attempt, later in zip(stay.attempts, (*stay.attempts, None)[1:], strict=True):
        region = regions[attempt.number]
        pieces = [(at_ms, region.start_ms, Spent.STARTUP)]
        if region.told.points:
            pieces += _told_pieces(stay, attempt, region, kept, is_last=later is None)
        else:  # the others tell of their steps, so it made none
            pieces.append((region.start_ms, region.end_ms, Spent.STARTUP if is_told else Spent.UNTOLD))
        made = [Span(start, end, spent, attempt.number) for start, end, spent in pieces if start < end]
        spans += _stalled(_lost(made, region, kept.losses[attempt.number]), saves.get(attempt.number, ()), region)
        at_ms = region.end_ms
    if at_ms < stay.end_ms:
        last = stay.attempts[-1].number if stay.attempts else None
        spans.append(Span(at_ms, stay.end_ms, Spent.UNTOLD if last is None else Spent.TEARDOWN, last))
    return spans


def _told_pieces(
    stay: Stay, attempt: AttemptFacts, region: Region, kept: Kept, *, is_last: bool
) -> list[tuple[int, int, Spent]]:
    told, first_ms = region.told, region.told.points[0].at_ms
    last_ms = first_ms if told.last_ms is None else max(first_ms, told.last_ms)
    silent_ms = region.end_ms - last_ms
    if not told.last or kept.runs == attempt.number:
        end = Spent.UNTOLD
    elif attempt.done or attempt.ending in _OWN_END:
        end = Spent.TEARDOWN
    elif attempt.ending in _FAILED or (attempt.ending == "" and not (is_last and stay.state in _TOLD)):
        end = Spent.HANG
    else:
        end = Spent.HANG if silent_ms >= _SILENCE_MS else Spent.TEARDOWN
    return [
        (region.start_ms, first_ms, Spent.STARTUP if told.first else Spent.UNTOLD),
        (first_ms, last_ms, Spent.PRODUCTIVE),
        (last_ms, region.end_ms, end),
    ]


def _lost(spans: list[Span], region: Region, losses: Sequence[Loss]) -> list[Span]:
    """Of its productive time what came after the steps that count."""
    until_ms = region.end_ms
    for loss in losses if region.told.points else ():
        since_ms, _ = region.told.moment_of(loss.after)
        spans = _repainted(spans, (Spent.PRODUCTIVE,), [(since_ms, until_ms)], loss.spent, loss.charged)
        until_ms = since_ms
    return spans


def _stalled(spans: list[Span], saves: Sequence[SaveFacts], region: Region) -> list[Span]:
    """What the training waited for saves: all of it is work, from the first sign of which to the last the saves lie."""
    if not region.told.points:
        return spans
    blocked = [(began(one), max(0, one.blocked_ms or 0)) for one in saves]
    spans = painted(spans, [(at_ms, at_ms + ms) for at_ms, ms in blocked if at_ms is not None], Spent.STALL)
    sometime_ms = sum(ms for at_ms, ms in blocked if at_ms is None)
    return taken(spans, (region.start_ms, region.end_ms), sometime_ms, _WORK, Spent.STALL)


def _repainted(
    spans: Sequence[Span],
    kinds: Collection[Spent],
    stretches: Sequence[tuple[int, int]],
    spent: Spent,
    charged: AttemptNumber | None,
) -> list[Span]:
    """As `painted`, but only what was spent in one of these ways."""
    made = painted((one for one in spans if one.spent in kinds), stretches, spent, charged)
    return sorted((*made, *(one for one in spans if one.spent not in kinds)), key=lambda one: one.start_ms)


def _suspended(facts: RunFacts, spans: list[Span]) -> list[Span]:
    """What Slurm says of each record; components of a hetjob are suspended together."""
    for record in facts.records:
        stretch = held(record)
        if stretch is None or record.suspended_ms <= 0:
            continue
        part = touched(spans, *stretch)
        already = [one for one in within(spans[part], *stretch) if one.spent is Spent.SUSPENDED]
        missing_ms = record.suspended_ms - sum(one.ms for one in already)
        spans[part] = taken(spans[part], stretch, missing_ms, _HELD, Spent.SUSPENDED)
    return spans


def _is_estimated(regions: Mapping[AttemptNumber, Region], kept: Kept) -> bool:
    """Whether a moment that bounds lost time is none that was told."""
    return any(
        not region.told.moment_of(loss.after)[1]
        for number, region in regions.items()
        for loss in kept.losses[number]
        if region.told.points
    )


def _unsaved_ms(spans: Sequence[Span], regions: Mapping[AttemptNumber, Region], kept: Kept) -> int | None:
    if kept.newest is None:
        return None
    since = {number: region.told.moment_of(kept.newest)[0] for number, region in regions.items() if region.told.points}
    work = [one for one in spans if one.spent is Spent.PRODUCTIVE and one.attempt in since]
    return sum(max(0, one.end_ms - max(one.start_ms, since[one.attempt])) for one in work if one.attempt is not None)
