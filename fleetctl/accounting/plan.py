"""Which windows of time a sync asks Slurm for, and what it knows afterwards.

A window tells every record that ended at or after its start, or has not ended, and was eligible before its end: windows
that tile a stretch of time together tell all that happened in it (as_mysql_jobacct_process.c,
setup_job_cond_limits). The window that ends now tells all that is open as well.

The *watermark* is the stretch `from_s` to `to_s` of which everything that Slurm had is in the database. Two kinds of
work widen it: going *on* from its end to now, and going *back* from its start to the time that somebody asked for.
Going on begins an hour before the watermark's end, once a day 7 days and once a week 35 days before now, since records
may reach slurmdbd late and closed ones are edited.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

_HOUR_S, _DAY_S = 3600, 86_400
# slurm_errno.c: ESLURM_DB_QUERY_TOO_WIDE and ESLURM_RESULT_TOO_LARGE
_TOO_MUCH = ("too wide of a date range", "exceeds size limit")


class Policy(Struct, frozen=True):
    """The times of a sync. A sweep is due a little early, so that one started by cron never skips a day."""

    overlap_s: int = _HOUR_S
    nightly_after_s: int = 20 * _HOUR_S
    nightly_reach_s: int = 7 * _DAY_S
    weekly_after_s: int = 7 * _DAY_S - 4 * _HOUR_S
    weekly_reach_s: int = 35 * _DAY_S
    first_reach_s: int = 35 * _DAY_S  # of a sync that nobody told how far to go back
    chunk_s: int = _DAY_S  # of the first window
    least_chunk_s: int = 60  # narrower ones are not tried: it is something else then
    most_chunk_s: int = 28 * _DAY_S
    many_rows: int = 25_000  # a reply of more makes the next window half as wide: a row takes 7 KB of memory


POLICY = Policy()


class SyncState(Struct, frozen=True):
    """Columns of `sync_state`. All None: nothing was ever read."""

    from_s: int | None = None
    to_s: int | None = None
    synced_s: int | None = None
    nightly_s: int | None = None
    weekly_s: int | None = None
    waiting: int | None = None
    sees_all: int | None = None
    events_s: int | None = None


class Way(StrEnum):
    ON = "on"
    BACK = "back"


class Step(Struct, frozen=True):
    """One window to ask for. `until_s` None: now."""

    way: Way
    since_s: int
    until_s: int | None


class Pass(Struct, frozen=True):
    """One sync as it goes. `now_s` is when it began, before its first question: the newest moment it may vouch for.

    What is left is `on_s` to now, going on, and `back_until_s` down to `back_s`, going back.
    """

    now_s: int
    on_s: int | None  # None: gone on until now
    back_s: int
    back_until_s: int
    reach_s: int  # at its end all since then was asked for anew
    chunk_s: int
    most_chunk_s: int  # less than what was refused
    held: bool  # the gate is closed: nothing may be vouched for
    sees_all: bool | None  # Slurm shows the jobs of all users; None: not known

    @property
    def left_s(self) -> int:
        """Seconds of history that are still to be asked for."""
        on = 0 if self.on_s is None else max(0, self.now_s - self.on_s)
        return on + max(0, self.back_until_s - self.back_s)


def begin(
    state: SyncState, now_s: int, waiting: int | None, since_s: int | None, policy: Policy, sees_all: bool | None
) -> Pass:
    """What a sync that begins at `now_s` has to read. `since_s` None: as far back as it has been read before.

    `waiting`: records that slurmctld has not handed on; None where that is not known, which closes the gate, too.
    `sees_all`: whether Slurm shows the jobs of all users. Where it did not before, all is read anew.
    """
    held = waiting is None or waiting > 0
    start, end = state.from_s, state.to_s
    if start is None or end is None or start > now_s:
        asked = min(now_s - policy.first_reach_s if since_s is None else since_s, now_s)
        newest = max(asked, now_s - policy.chunk_s)
        return Pass(now_s, newest, asked, newest, asked, policy.chunk_s, policy.most_chunk_s, held, sees_all)
    interrupted = state.weekly_s is None and start > now_s - policy.first_reach_s  # the first sync was, on its way back
    back = min(start, now_s - policy.first_reach_s if since_s is None and interrupted else since_s or start)
    on = min(end, now_s) - policy.overlap_s
    if end > now_s:  # the clock was ahead, and nobody knows how far was read
        on = min(on, max(now_s - policy.weekly_reach_s, start))
    elif not interrupted:
        on = min(on, max(now_s - _sweep(state, now_s, policy), start))
    if since_s is not None and since_s >= start:
        on = min(on, since_s)
    if sees_all and state.sees_all != 1:
        on = min(on, start)
    return Pass(now_s, on, back, start, on, policy.chunk_s, policy.most_chunk_s, held, sees_all)


def _sweep(state: SyncState, now_s: int, policy: Policy) -> int:
    if _is_due(state.weekly_s, now_s, policy.weekly_after_s):
        return policy.weekly_reach_s
    return policy.nightly_reach_s if _is_due(state.nightly_s, now_s, policy.nightly_after_s) else 0


def _is_due(last_s: int | None, now_s: int, after_s: int) -> bool:
    return last_s is None or not 0 <= now_s - last_s < after_s  # a sweep in the future: the clock was wrong


def next_window(going: Pass) -> Step | None:
    """The next window to ask for; None: all is read. First on to now, then back."""
    if going.on_s is not None:
        until = going.on_s + going.chunk_s
        return Step(Way.ON, going.on_s, until if until < going.now_s else None)
    if going.back_until_s > going.back_s:
        return Step(Way.BACK, max(going.back_s, going.back_until_s - going.chunk_s), going.back_until_s)
    return None


def is_too_much(words: str) -> bool:
    """Whether Slurm refused a window only for its width."""
    return any(known in words.lower() for known in _TOO_MUCH)


def narrower(going: Pass, step: Step, policy: Policy) -> Pass | None:
    """After a refusal of this window for its width; None: it cannot be narrower."""
    width = (going.now_s if step.until_s is None else step.until_s) - step.since_s
    chunk = min(width, going.chunk_s) // 2
    return None if chunk < policy.least_chunk_s else replace(going, chunk_s=chunk, most_chunk_s=chunk)


def after(going: Pass, step: Step, closed_rows: int, policy: Policy) -> Pass:
    """After this window was read and gave so many rows, without those that are open, which every window gives."""
    chunk = going.chunk_s // 2 if closed_rows > policy.many_rows else going.chunk_s * 2
    chunk = min(max(chunk, policy.least_chunk_s), going.most_chunk_s)
    if step.way is Way.ON:
        return replace(going, on_s=step.until_s, chunk_s=chunk)
    return replace(going, back_until_s=step.since_s, chunk_s=chunk)


def known_after(state: SyncState, going: Pass, step: Step) -> SyncState:
    """What is known once this window is in the database, in the same transaction. The gate holds it back.

    A window widens the watermark only where it touches it. One that reaches until now ends it at the moment when the
    sync began: not later, and earlier than before where the clock had been ahead. That all users' jobs are known of all
    of it can end with one window, and comes back only with a whole pass.
    """
    start, end = state.from_s, state.to_s
    until = going.now_s if step.until_s is None else step.until_s
    if going.held:
        return state
    if end is None or not going.sees_all:
        state = replace(state, sees_all=None if going.sees_all is None else int(going.sees_all))
    if start is None or end is None:
        return replace(state, from_s=step.since_s, to_s=until)
    if step.since_s > end or (step.until_s is not None and until < start):
        return state
    return replace(state, from_s=min(start, step.since_s), to_s=until if step.until_s is None else max(end, until))


def whole_after(state: SyncState, going: Pass, policy: Policy) -> SyncState:
    """What is known once all windows of a sync are in the database."""
    state = replace(state, synced_s=going.now_s)
    if going.held:
        return state
    if going.sees_all:
        state = replace(state, sees_all=1)
    oldest = state.from_s or 0
    if going.reach_s <= max(going.now_s - policy.nightly_reach_s, oldest):
        state = replace(state, nightly_s=going.now_s)
    if going.reach_s <= max(going.now_s - policy.weekly_reach_s, oldest):
        state = replace(state, weekly_s=going.now_s)
    return state
