"""Rows of squeue, sacct and sinfo, framed and turned into values.

Names, comments, paths and reasons are written by users and may hold newlines and any separator. So the caller draws a
random mark for each query and puts it between the fields: no text can contain it. The first and the last column are
ones that nobody can edit, so the end of a row is certain. A reply that does not fit is an error, never fewer rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from fleetctl.errors import CannotTell
from fleetctl.slurm.model import Job, JobId, JobRecord, JobState, Node, Partition
from fleetctl.slurm.parse import parse_pending_tasks

# squeue.1 --format. Not -O: its columns are cut at 20 characters unless each is given a width.
SQUEUE_FIELDS = (
    *("%i", "%j", "%u", "%T", "%r", "%k", "%P", "%a", "%N", "%D", "%V"),
    *("%S", "%e", "%l", "%o", "%Z", "%E", "%x", "%Q", "%b", "%B", "%w", "%A"),
)
# squeue.1 --Format: --format has no restarts, and --Format no excluded nodes (22.05), so that both takes two queries.
RESTART_FIELDS = ("JobID", "RestartCnt", "SubmitTime", "JobID")
# sacct.1 --format; all of them exist from 22.05 on (SLUID and Restarts only from 24.11).
SACCT_FIELDS = (
    *("JobID", "JobName", "User", "State", "ExitCode", "DerivedExitCode", "Submit", "Start", "End"),
    *("ElapsedRaw", "Partition", "Account", "NodeList", "Comment", "DBIndex", "JobIDRaw"),
)
# sinfo.1 --Format, each followed by the mark (`Name:MARK` sets no width, so that nothing is cut).
SINFO_NODE_FIELDS = (
    *("NodeList", "StateComplete", "Gres", "GresUsed", "CPUs", "Memory"),
    *("Reason", "User", "Timestamp", "PartitionName", "NodeList"),
)
SINFO_PARTITION_FIELDS = ("%R", "%P", "%a", "%l", "%L", "%D")

_NONE = frozenset({"", "(null)", "N/A", "NONE", "None", "Unknown", "n/a", "none", "None assigned"})
_REPEATS = 1024  # thousands of rows hold a handful of states and time limits, and arrays share their times
_UNIT = {"K": 1024, "M": 1024**2, "G": 1024**3}  # squeue prints exact multiples of counts in these


def split_rows(text: str, mark: str, width: int) -> Iterator[list[str]]:
    """The rows of a reply whose `width` fields are joined by `mark`.

    :raises CannotTell: the reply cannot be framed.
    """
    if not text.strip():
        return
    pieces = text.split(mark)
    step = width - 1  # the last field of a row and the first of the next are one piece, with the newline between
    count, rest = divmod(len(pieces) - 1, step)
    if rest or not count:
        raise CannotTell(f"Slurm's reply cannot be read: {len(pieces) - 1} separators for rows of {width} fields")
    first = pieces[0]
    for row in range(count):
        tail = pieces[(row + 1) * step]
        last, newline, following = tail.partition("\n")
        if (row + 1 < count) != bool(following.strip()) or (row + 1 < count and not newline):
            raise CannotTell(f"Slurm's reply cannot be read: row {row + 1} ends in {tail[:80]!r}")
        yield [first, *pieces[row * step + 1 : (row + 1) * step], last.strip()]
        first = following


def parse_squeue(text: str, mark: str) -> tuple[Job, ...]:
    """Jobs of `squeue --noheader --format=...` over SQUEUE_FIELDS, times in epoch seconds.

    :raises CannotTell: a row cannot be read.
    """
    return tuple(_job(row) for row in split_rows(text, mark, len(SQUEUE_FIELDS)))


def _job(row: list[str]) -> Job:
    return Job(
        id=_job_id(row[0]),
        raw_id=required_int(row[22], "raw job id"),
        pending_tasks=parse_pending_tasks(row[0]),
        name=row[1],
        user=row[2],
        state=_state(row[3]),
        reason=read_text(row[4]),
        comment="" if row[5] == "(null)" else row[5],
        partition=row[6],
        account=read_text(row[7]),
        node_list=read_text(row[8]),
        node_count=read_count(row[9]),
        submit_time=read_time(row[10]),
        start_time=read_time(row[11]),
        end_time=read_time(row[12]),
        time_limit_s=parse_time_limit(row[13]),
        command=read_text(row[14]),
        work_dir=read_text(row[15]),
        dependency=read_text(row[16]),
        excluded_nodes=read_text(row[17]),
        priority=read_count(row[18]),
        gres_per_node=read_text(row[19]),
        batch_host=read_text(row[20]),
        wckey=row[21],
    )


def parse_restarts(text: str, mark: str) -> Mapping[tuple[int, datetime | None], int | None]:
    """How often each job has begun again, by its raw id and submit time, which a requeue rewrites.

    :raises CannotTell: a row cannot be read.
    """
    found = split_rows(text, mark, len(RESTART_FIELDS))
    return {(required_int(row[0], "raw job id"), read_time(row[2])): read_count(row[1]) for row in found}


def with_restarts(job: Job, restarts: Mapping[tuple[int, datetime | None], int | None]) -> Job:
    return msgspec.structs.replace(job, restarts=restarts.get((job.raw_id, job.submit_time)))


def parse_sacct(text: str, mark: str) -> tuple[JobRecord, ...]:
    """Records of `sacct --allocations --parsable2 --format=...` over SACCT_FIELDS, times in epoch seconds.

    :raises CannotTell: a row cannot be read.
    """
    return tuple(_record(row) for row in split_rows(text, mark, len(SACCT_FIELDS)))


def _record(row: list[str]) -> JobRecord:
    return JobRecord(
        id=_job_id(row[0]),
        raw_id=required_int(row[15], "raw job id"),
        pending_tasks=parse_pending_tasks(row[0]),
        name=row[1],
        user=row[2],
        state=_state(row[3]),
        exit_code=_exit_code(row[4]),
        derived_exit_code=_exit_code(row[5]),
        submit_time=read_time(row[6]),
        start_time=read_time(row[7]),
        end_time=read_time(row[8]),
        elapsed_s=read_count(row[9]),
        partition=row[10],
        account=row[11],
        node_list=read_text(row[12]),
        comment=row[13],
        db_index=read_count(row[14]),
    )


def parse_sinfo_nodes(text: str, mark: str) -> tuple[Node, ...]:
    """Nodes of `sinfo --Node --Format=...` over SINFO_NODE_FIELDS; sinfo has one row per node and partition.

    :raises CannotTell: a row cannot be read.
    """
    rows: dict[str, list[str]] = {}
    partitions: dict[str, list[str]] = {}
    for row in split_rows(text, mark, len(SINFO_NODE_FIELDS)):
        rows[row[0]] = row
        if read_text(row[9]):
            partitions.setdefault(row[0], []).append(row[9])
    return tuple(_node(row, tuple(partitions.get(name, ()))) for name, row in rows.items())


def _node(row: list[str], partitions: tuple[str, ...]) -> Node:
    base, *flags = row[1].upper().split("+")
    return Node(
        name=row[0],
        base_state=base.rstrip("*$~#!%@^-"),  # sinfo.1, node state codes: suffixes that repeat a flag
        flags=frozenset(flags),
        reason=read_text(row[6]),
        reason_user=read_text(row[7]),
        reason_time=read_time(row[8]),
        gpus=count_gpus(row[2]),
        gpus_used=count_gpus(row[3]),
        gres=read_text(row[2]),
        cpus=read_count(row[4]),
        memory_mib=read_count(row[5]),
        partitions=partitions,
    )


def parse_sinfo_partitions(text: str, mark: str) -> tuple[Partition, ...]:
    """Partitions of `sinfo --noheader --format=...` over SINFO_PARTITION_FIELDS; several rows of one are added up.

    :raises CannotTell: a row cannot be read.
    """
    found: dict[str, Partition] = {}
    for name, starred, state, limit, default, nodes in split_rows(text, mark, len(SINFO_PARTITION_FIELDS)):
        before = found.get(name)
        found[name] = Partition(
            name=name,
            is_default=starred.endswith("*"),
            state=state.upper(),
            max_time_s=parse_time_limit(limit),
            default_time_s=parse_time_limit(default),
            node_count=(before.node_count if before else 0) + (read_count(nodes) or 0),
        )
    return tuple(found.values())


@lru_cache(maxsize=_REPEATS)
def count_gpus(gres: str) -> int:
    """The GPUs in a GRES text: `gpu:h100:8(S:0-1),nvme:1` has 8, `gpu:h100:3(IDX:0-2)` has 3."""
    total = 0
    depth = 0
    plain = ""
    for char in gres:  # commas and colons inside parentheses belong to the index list
        depth += (char == "(") - (char == ")")
        plain += char if depth == 0 and char != ")" else ""
    for part in plain.split(","):
        words = part.split(":")
        if words[0] == "gpu":
            total += read_count(words[-1]) or (1 if len(words) == 1 else 0)
    return total


@lru_cache(maxsize=_REPEATS)
def parse_time_limit(text: str) -> int | None:
    """Seconds of `[D-]HH:MM:SS` or `MM:SS`; None for UNLIMITED, infinite, n/a and words we do not know."""
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isascii() and part.isdigit() for part in (*parts, *([days] if dash else []))):
        return None
    if not 1 < len(parts) <= 3:
        return None
    hours, minutes, seconds = ([0, 0, *map(int, parts)])[-3:]
    return int(days or 0) * 86_400 + hours * 3_600 + minutes * 60 + seconds


@lru_cache(maxsize=_REPEATS)
def _state(text: str) -> JobState:
    return JobState.parse(text)


def _job_id(text: str) -> JobId:
    try:
        return JobId.parse(text)
    except ValueError as error:
        raise CannotTell(f"Slurm's reply cannot be read: {error}") from None


def required_int(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise CannotTell(f"Slurm's reply cannot be read: {text[:80]!r} is no {what}")
    return int(text)


def read_text(text: str) -> str:
    return "" if text in _NONE else text


@lru_cache(maxsize=_REPEATS)
def read_count(text: str) -> int | None:
    """A count as Slurm prints it: `12`, `1K`; None when there is none."""
    factor = _UNIT.get(text[-1:], 1)
    digits = text[:-1] if factor > 1 else text
    return int(digits) * factor if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


@lru_cache(maxsize=_REPEATS)
def read_time(text: str) -> datetime | None:
    """Epoch seconds; None for 0 and for a word: N/A, Unknown, NONE (the end of a job without a limit).

    :raises CannotTell: a time in another form, so that it is never taken for none.
    """
    if text == "0" or not any(char.isdigit() for char in text):
        return None
    if text.isascii() and text.isdigit() and len(text) <= 11:
        return datetime.fromtimestamp(int(text), UTC)
    raise CannotTell(f"Slurm's reply cannot be read: {text[:80]!r} is no time in epoch seconds")


def _exit_code(text: str) -> tuple[int, int] | None:
    status, colon, signal = text.partition(":")
    both = (read_count(status), read_count(signal)) if colon else (None, None)
    return (both[0], both[1]) if both[0] is not None and both[1] is not None else None
