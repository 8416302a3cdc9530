"""The runs of a pass: which folders there are, what changed in them, and which rows of Slurm are theirs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from fleetctl.recovery.bounded import words_of
from fleetctl.recovery.find_runs import by_base, folder_of, rows_of, run_id_of, tasks_of
from fleetctl.recovery.kept import Known, Limits, Seen
from fleetctl.recovery.model import RunSeen
from fleetctl.recovery.mounts import Question
from fleetctl.recovery.read_run import NO_RECORD
from fleetctl.recovery.read_wire import AskRun, AskRuns, Failed, ToldRun, ToldRuns
from fleetctl.recovery.see_runs import GONE, Whose, all_watched, see, unseen
from fleetctl.recovery.sources import Sources
from fleetctl.rundir.model import RunKind
from fleetctl.slurm.model import Job
from fleetctl.submission.decide_requeue import Phase, phase

_MOST_PULSES = 4_000  # elements of one sweep that run at once: more names than half a pipe holds

ToldOf = dict[str, ToldRun | Failed]


class Watched(Struct, frozen=True):
    """`runs` None: nothing is known of any. `trouble`: why some may be missing."""

    runs: tuple[RunSeen, ...] | None
    trouble: str = ""


class Rows(Struct, frozen=True):
    """Slurm's answer, by job and by the run that each job says to be of; None: it gave none."""

    by_base: Mapping[str, Sequence[Job]] | None
    by_run: Mapping[str, Sequence[Job]]

    def of(self, path: str, known: Known) -> tuple[Job, ...]:
        """Those of a run that was read."""
        if known.read is None or self.by_base is None:
            return ()
        return rows_of(known.read.facts.history, path, self.by_base)


def watch(sources: Sources, before: Seen, jobs: Sequence[Job] | None, at: datetime) -> tuple[Watched, Seen]:
    """The runs that are watched, by their folders, and what is known of them now."""
    rows = Rows(None if jobs is None else by_base(jobs), _by_run(jobs or ()))
    known = dict(before.runs)
    paths, trouble = _paths(sources, known, rows, jobs or ())
    told: ToldOf = {}
    _ask(sources, rows, at, known, told, paths)
    _ask(sources, rows, at, known, told, [path for path in told if _has_more(path, known[path], told[path], rows)])
    folders = _folders(known, rows, before.folders, is_listed=sources.root is not None)
    whose = Whose(sources.cluster, None if sources.root is None else sources.user)
    runs: list[RunSeen] = []
    for path, one in told.items():
        mine = rows.of(path, known[path])
        heard = mine if rows.by_base is not None and (mine or sources.hears_all) else None
        try:
            known[path] = all_watched(known[path], one, heard, whose, sources.limits, at)
            if known[path].is_watched and folders.get(known[path].run_id, "" if known[path].read else path) == path:
                runs += list(_seen(sources, path, known[path], one, heard, rows, at))
        except Exception as error:  # noqa: BLE001 - what one run brings about costs that run alone
            trouble = f"{path}: {words_of(error)}"
            runs += unseen(path, known[path].run_id, sources.user, (None,), heard, trouble)
    nothing = jobs is None and sources.root is None and not runs
    watched = Watched(None if nothing or (trouble and not runs) else tuple(runs), trouble)
    return watched, replace(before, runs=_kept(sources, known), folders=folders)


def _by_run(jobs: Iterable[Job]) -> Mapping[str, Sequence[Job]]:
    found: dict[str, list[Job]] = {}
    for job in jobs:
        if (run_id := run_id_of(job)) is not None:
            found.setdefault(run_id, []).append(job)
    return found


def _paths(sources: Sources, known: dict[str, Known], rows: Rows, jobs: Sequence[Job]) -> tuple[list[str], str]:
    """The folders to be read: new ones, those that are not over, and those whose job is there again."""
    trouble = ""
    if sources.root is None:
        there = {path for job in jobs if (path := folder_of(job)) is not None}
    else:
        there, trouble = _listed(sources, sources.root, is_new=not known)
    if rows.by_base is not None and not trouble:  # of what was never read, only the job or the listing told
        for path in [path for path, one in known.items() if one.read is None and path not in there]:
            del known[path]
    wanted = {path for path, one in known.items() if one.is_watched}
    for path in there:
        if path not in known:
            known[path] = Known(path.rpartition("/")[2])
            wanted.add(path)
        elif not known[path].is_watched and _is_back(rows.by_run.get(known[path].run_id, ())):
            wanted.add(path)
    return sorted(wanted), trouble


def _listed(sources: Sources, root: str, *, is_new: bool) -> tuple[set[str], str]:
    """The folders below the root, and why some may be missing. `is_new`: nothing was ever seen there, so that it may
    not have been made yet; else it is away."""
    place = os.fsencode(f"{root}/-")  # what lies in it, not it, tells its mount
    ((told,),) = sources.readers.ask([Question(AskRuns(os.fsencode(root)), place)])
    if isinstance(told, ToldRuns):
        return {f"{root}/{name}" for name in told.names}, ""
    why = told.why if isinstance(told, Failed) else "no answer"
    return set(), "" if why == GONE and is_new else f"{root}: {why}"


def _is_back(rows: Sequence[Job]) -> bool:
    return any(not job.state.is_terminal for job in rows)


def _ask(
    sources: Sources, rows: Rows, at: datetime, known: dict[str, Known], told: ToldOf, paths: Sequence[str]
) -> None:
    """Reads these folders, and keeps what was read in `known`."""
    asks = [_question(path, known[path], rows, sources.limits, at, again=path in told) for path in paths]
    for path, ask, answer in zip(paths, asks, sources.readers.ask(asks), strict=True):
        one = answer[-1]
        told[path] = one if isinstance(one, ToldRun) else one if isinstance(one, Failed) else Failed("it said nonsense")
        if isinstance(one, ToldRun) and one.state:
            assert isinstance(ask.ask, AskRun), "_question makes it"
            now = replace(known[path], read=one.read or known[path].read)
            known[path] = _learned(now, one, rows.of(path, now), at, thorough=ask.ask.thorough)


def _question(path: str, known: Known, rows: Rows, limits: Limits, at: datetime, *, again: bool) -> Question:
    mine = rows.of(path, known)
    ask = AskRun(
        path=os.fsencode(path),
        run_id=known.run_id,
        tasks=_asked_tasks(known, mine),
        state=known.state,
        digest=known.digest if known.read is not None else "",
        uid=known.uid,
        thorough=again or _is_thorough(known, mine, limits, at),
        signs=_is_silent(known, mine),
    )
    return Question(ask, known.real or ask.path)


def _asked_tasks(known: Known, rows: Sequence[Job]) -> tuple[int | None, ...]:
    """The elements of a sweep that have a head; of any other run itself."""
    if known.read is None or known.read.facts.history.record.kind is not RunKind.SWEEP:
        return (None,)
    alive = {job.id.array_index for job in rows if phase(job.state) is not Phase.ENDED}
    return tuple(sorted(task for task in alive if task is not None)[:_MOST_PULSES])


def _is_thorough(known: Known, rows: Sequence[Job], limits: Limits, at: datetime) -> bool:
    """Whether each event file must be looked at. Else the head's own count of what it wrote, and new files, tell."""
    if known.read is None or known.looked_at is None or _key(rows) != known.rows:
        return True
    if _is_silent(known, rows):
        return True
    apart = timedelta(seconds=crc32(known.run_id.encode()) % 600)  # not all of them in one pass
    if not timedelta(0) <= at - known.looked_at < limits.thorough + apart:
        return True
    return known.changed_at is not None and timedelta(0) <= at - known.changed_at < limits.settling


def _is_silent(known: Known, rows: Sequence[Job]) -> bool:
    return known.read is not None and not known.is_fresh and any(phase(job.state) is Phase.LIVES for job in rows)


def _learned(known: Known, told: ToldRun, rows: Sequence[Job], at: datetime, *, thorough: bool) -> Known:
    """With what was read. What changed nothing keeps its time of change."""
    is_news = told.read is not None or told.state != known.state or _key(rows) != known.rows
    return replace(
        known,
        state=told.state,
        digest=told.digest,
        uid=told.uid,
        real=told.real or known.real,
        rows=_key(rows),
        looked_at=at if thorough or told.read is not None else known.looked_at,
        changed_at=at if is_news and known.looked_at is not None else known.changed_at,
    )


def _key(rows: Sequence[Job]) -> tuple[tuple[int, str, int | None], ...]:
    return tuple((job.raw_id, str(job.state), job.restarts) for job in rows)


def _has_more(path: str, known: Known, told: ToldRun | Failed, rows: Rows) -> bool:
    """Whether the elements of a sweep became known only now."""
    if not isinstance(told, ToldRun) or told.read is None:
        return False
    wanted = _asked_tasks(known, rows.of(path, known))
    return bool(wanted) and wanted != (None,)


def _folders(
    known: Mapping[str, Known], rows: Rows, before: Mapping[str, str], *, is_listed: bool
) -> Mapping[str, str]:
    """The folder of each run's id: the first that was known, else that of the oldest job. Anybody may name a folder so
    as somebody else's is named, or name somebody else's by a path of his own: a job of its owner must name it."""
    found = {run_id: path for run_id, path in before.items() if path in known and known[path].read is not None}
    read = [(path, one) for path, one in known.items() if one.read is not None and one.run_id not in found]
    if not is_listed:
        read = [(path, one) for path, one in read if _is_named(path, one, rows)]
    if len({one.run_id for _, one in read}) < len(read):
        read.sort(key=lambda pair: (min((job.raw_id for job in rows.of(*pair)), default=1 << 33), pair[0]))
    for path, one in read:
        found.setdefault(one.run_id, path)
    return found


def _is_named(path: str, known: Known, rows: Rows) -> bool:
    owner = known.read.owner if known.read is not None else ""
    return any(job.user == owner and folder_of(job) == path for job in rows.by_run.get(known.run_id, ()))


def _seen(
    sources: Sources,
    path: str,
    known: Known,
    told: ToldRun | Failed,
    mine: Sequence[Job] | None,
    rows: Rows,
    at: datetime,
) -> Iterator[RunSeen]:
    if isinstance(told, ToldRun) and told.state and known.read is not None:
        yield from see(path, known.read, told, mine, sources.limits, at)
        return
    trouble = told.why if isinstance(told, Failed) else told.trouble
    hints = rows.by_run.get(known.run_id, ())
    if trouble == NO_RECORD and known.read is None and not hints:
        return  # no folder of a run, or one that is just being made
    tasks = (None,) if known.read is None else tasks_of(known.read.facts.history, mine or ())
    user = known.read.owner if known.read is not None else next((job.user for job in hints), sources.user)
    yield from unseen(path, known.run_id, user, tasks, None if known.read is None else mine, trouble)


def _kept(sources: Sources, known: Mapping[str, Known]) -> Mapping[str, Known]:
    """A daemon for all users finds a run again by its job; its own folder is listed in each pass, so that what is over
    must be remembered."""
    is_listed = sources.root is not None
    return {path: one for path, one in known.items() if one.is_watched or (is_listed and one.read is not None)}
