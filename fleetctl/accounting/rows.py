"""Rows of sacct as records and steps. The columns may be in any order, and the newer ones may be missing."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from operator import itemgetter

from fleetctl.accounting.causes import slurm_cause
from fleetctl.accounting.framing import text_of
from fleetctl.accounting.model import Record, StepRecord
from fleetctl.accounting.tres import Tres, parse_tres

_RECORD_COLUMNS = (
    *("DBIndex", "JobID", "JobIDRaw", "JobName", "User", "Account", "Partition", "QOS", "State", "ExitCode"),
    *("DerivedExitCode", "Submit", "Eligible", "Start", "End", "Suspended", "TimelimitRaw", "AllocTRES", "NodeList"),
    *("FailedNode", "Restarts", "Reason", "Comment", "AdminComment", "SLUID", "OriginalSLUID", "UID"),
)
_STEP_COLUMNS = (
    *("DBIndex", "JobIDRaw", "JobName", "State", "ExitCode", "Start", "End", "NodeList", "NTasks", "SLUID"),
)
_KEY_COLUMNS = ("DBIndex", "SLUID", "JobIDRaw", "Submit")
_NEEDED = frozenset({"JobID", "JobIDRaw", "State", "Submit", "Start", "End"})
_STEP_NEEDED = frozenset({"JobIDRaw", "State", "Start", "End"})

# JobID (slurmdb_get_job_id_str); the pending rest of an array may be cut ("123_[1,3,..." of SLURM_BITSTR_LEN)
_JOB_ID = re.compile(r"([0-9]{1,10})(?:_([0-9]{1,10})|_\[([^\]]*)\]?|\+([0-9]{1,10}))?", re.ASCII)
_EXIT_CODE = re.compile(r"([0-9]{1,10}):([0-9]{1,10})", re.ASCII)
_DURATION = re.compile(r"(?:([0-9]{1,6})-)?(?:([0-9]{1,6}):)?([0-9]{1,6}):([0-9]{1,2})(?:\.[0-9]{1,9})?", re.ASCII)
_CANCELLED_BY = re.compile(r"(\S+) by ([0-9]{1,10})", re.ASCII)
_SLUID = re.compile(r"s([0-9A-HJKMNP-TV-Z]{13})", re.ASCII | re.IGNORECASE)
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_NO_TEXT = frozenset({"", "None", "Unknown", "None assigned", "(null)", "N/A"})
_LARGEST = 2**63 - 1  # what a column of the database holds
_LARGEST_ID = 2**32 - 1  # uint32_t (slurm.h)
_REPEATS = 4096
_NEVER_HELD = frozenset({"PENDING", "CANCELLED"})  # where it is told neither nodes nor TRES
_NOTHING = Tres(None, None, None, 0, "", None)  # what a job that never had a node held

Pick = Callable[[tuple[str, ...]], tuple[str, ...]]


def parse_record(columns: tuple[str, ...], row: tuple[str, ...]) -> Record:
    """The record of one row.

    A state that we do not know is kept. A job that never had a node did not start and held nothing: `gpus` is 0, and
    the other counts None.
    :raises ValueError: a column is missing, or a field is not what Slurm writes there; one line.
    """
    (
        index, job, raw, name, user, account, partition, qos, state, ended_with,
        derived, submit, eligible, start, end, suspended, limit, tres, node_list,
        failed, restarts, reason, comment, admin_comment, sluid, original, uid,
    ) = _picker(columns, _RECORD_COLUMNS, _NEEDED)((*row, ""))  # fmt: skip
    job_id, array_index, het_offset, pending = _job_id(job)
    word, by = _state(state)
    status, signal = _exit_code(ended_with)
    derived_status, derived_signal = _exit_code(derived)
    nodes = _known(node_list)
    started_s, submitted_s, ended_s = _time(start), _time(submit), _time(end)
    if started_s is not None:
        if not (tres or nodes) and (started_s == ended_s or word in _NEVER_HELD):
            started_s = None  # a job that is cancelled while it waits gets a Start equal to its End (seen on 22.05.8)
        elif submitted_s is not None and started_s < submitted_s <= (ended_s or submitted_s):
            started_s = submitted_s if _may_be_a_rest(sluid, original) else started_s
    held = parse_tres(tres) if started_s is not None else _NOTHING
    return Record(
        _key(index, sluid, raw, submit),
        _number(raw, _LARGEST_ID),
        job_id,
        array_index,
        het_offset,
        pending,
        text_of(name),
        _text(user),
        _text(account),
        _text(partition),
        _text(qos),
        word,
        by,
        status,
        signal,
        derived_status,
        derived_signal,
        submitted_s,
        _time(eligible),
        started_s,
        ended_s,
        _seconds(suspended),
        _limit(limit),
        held.nodes,
        held.cpus,
        held.memory_mib,
        held.gpus,
        held.gpu_models,
        held.billing,
        nodes,
        _word(failed),
        _number(restarts) if restarts else None,
        _word(reason),
        text_of(comment) if comment else "",
        text_of(admin_comment) if admin_comment else "",
        _cause(state, ended_with, derived, uid, failed, reason),
    )


def parse_step(columns: tuple[str, ...], row: tuple[str, ...]) -> StepRecord:
    """The step of one row, under the key of its record.

    :raises ValueError: as parse_record; also a row that is of no step, or names no record.
    """
    index, raw, name, state, ended_with, start, end, node_list, tasks, sluid = _picker(
        columns, _STEP_COLUMNS, _STEP_NEEDED
    )((*row, ""))
    job, dot, step = raw.partition(".")
    if not dot or not step:
        raise ValueError(f"JobIDRaw: {_short(raw)} is no step")
    _number(job, _LARGEST_ID)
    status, signal = _exit_code(ended_with)
    return StepRecord(
        _key(index, sluid, "", ""),
        text_of(step),
        text_of(name),
        _state(state)[0],
        status,
        signal,
        _time(start),
        _time(end),
        _known(node_list),
        _number(tasks) if tasks else None,
    )


def record_key(columns: tuple[str, ...], row: tuple[str, ...]) -> str:
    """Who a row is, without reading the rest of it.

    DBIndex in decimal digits, which SLUID is too (src/common/sluid.c); without either the raw id and the submission.
    :raises ValueError: it has none of these.
    """
    index, sluid, raw, submit = _picker(columns, _KEY_COLUMNS, frozenset({"JobIDRaw"}))((*row, ""))
    return _key(index, sluid, raw, submit)


def _key(index: str, sluid: str, raw: str, submit: str) -> str:
    if index.isdecimal() and index.isascii() and len(index) <= 20 and index[0] != "0":
        return index
    if index.strip("0"):
        raise ValueError(f"DBIndex: {_short(index)} is no number")
    if sluid:
        return str(_sluid(sluid))
    if not raw:
        raise ValueError("the row names no record: it has neither DBIndex nor SLUID")
    submitted_s = _time(submit)
    if submitted_s is None:
        raise ValueError("the row has no DBIndex, no SLUID and no time of submission")
    return f"{_number(raw, _LARGEST_ID)}@{submitted_s}"


def _may_be_a_rest(sluid: str, original: str) -> bool:
    """Whether a row that starts before its Submit is what is left of a resized job, as far as this row tells.

    Such a row repeats the Start of the whole job, and its Submit is when the size changed (seen on 22.05.8): the time
    before is in the record of the size before. From 26.05 on it names that record (sacct.1, OriginalSLUID). Before, a
    job that starts just after the clock was set back looks the same, and loses at most as many seconds as it was set.
    """
    return not original or original != sluid


def _sluid(text: str) -> int:
    """13 digits of Crockford's base 32 hold 65 bits; a SLUID is 64 (src/common/sluid.c)."""
    match = _SLUID.fullmatch(text)
    number = 0
    for digit in match[1].upper() if match else "":
        number = number * 32 + _CROCKFORD.index(digit)
    if not 0 < number < 2**64:
        raise ValueError(f"SLUID: {_short(text)} is none")
    return number


@lru_cache(maxsize=32)
def _picker(columns: tuple[str, ...], wanted: tuple[str, ...], needed: frozenset[str]) -> Pick:
    """Takes the wanted columns out of a row that has one more field, empty, for those that are missing."""
    if missing := sorted(needed - set(columns)):
        raise ValueError(f"the reply has no column {', '.join(missing)}")
    places = [columns.index(name) if name in columns else len(columns) for name in wanted]
    pick: Pick = itemgetter(*places)
    width = len(columns) + 1

    def picked(row: tuple[str, ...]) -> tuple[str, ...]:
        if len(row) != width:
            raise ValueError(f"the row has {len(row) - 1} fields instead of {width - 1}")
        return pick(row)

    return picked


def _job_id(text: str) -> tuple[int, int | None, int | None, str]:
    if text.isdecimal() and text.isascii():  # most are
        return _number(text, _LARGEST_ID), None, None, ""
    match = _JOB_ID.fullmatch(text)
    if match is None:
        raise ValueError(f"JobID: {_short(text)} is no job id")
    job, element, rest, component = match.groups()
    return (
        _number(job, _LARGEST_ID),
        None if element is None else _number(element, _LARGEST_ID),
        None if component is None else _number(component, _LARGEST_ID),
        "" if rest is None else text_of(rest),
    )


@lru_cache(maxsize=_REPEATS)
def _state(text: str) -> tuple[str, int | None]:
    """`CANCELLED by 1000` is a word and a uid; of any other text the first word is the state."""
    if match := _CANCELLED_BY.fullmatch(text):
        return text_of(match[1]), int(match[2])
    words = text.split()
    return (text_of(words[0]) if words else ""), None


@lru_cache(maxsize=_REPEATS)  # a few hundred endings make up most records
def _cause(state: str, ended_with: str, derived: str, uid: str, failed_node: str, reason: str) -> str:
    word, by = _state(state)
    status, signal = _exit_code(ended_with)
    derived_status, derived_signal = _exit_code(derived)
    owner = int(uid) if uid.isdecimal() and uid.isascii() and len(uid) <= 10 else None
    cause = slurm_cause(
        word,
        status=status,
        signal=signal,
        derived_status=derived_status,
        derived_signal=derived_signal,
        state_by=by,
        owner=owner,
        failed_node=_known(failed_node),
        reason=_known(reason),
    )
    return cause.value


@lru_cache(maxsize=_REPEATS)
def _exit_code(text: str) -> tuple[int | None, int | None]:
    if text in _NO_TEXT:
        return None, None
    match = _EXIT_CODE.fullmatch(text)
    if match is None:
        raise ValueError(f"ExitCode: {_short(text)} is no status:signal")
    return int(match[1]), int(match[2])


def _time(text: str) -> int | None:
    """Epoch seconds; None for 0 and for a word (Unknown, None), so that a time of another form is never none."""
    if text.isdecimal() and text.isascii() and len(text) <= 11:
        return int(text) or None
    if any(map(str.isdigit, text)):
        raise ValueError(f"{_short(text)} is no time in epoch seconds")
    return None


@lru_cache(maxsize=_REPEATS)
def _seconds(text: str) -> int | None:
    """`[D-]HH:MM:SS` or `MM:SS`, each with or without a fraction; None for a word: INVALID is a negative one."""
    if text.isalpha() or text in _NO_TEXT:
        return None
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{_short(text)} is no duration")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 86_400 + hours * 3_600 + minutes * 60 + seconds


@lru_cache(maxsize=_REPEATS)
def _limit(text: str) -> int | None:
    """TimelimitRaw is in minutes, or a word: UNLIMITED, Partition_Limit."""
    return _number(text, _LARGEST // 60) * 60 if text.isdecimal() else None


def _number(text: str, largest: int = _LARGEST) -> int:
    if text.isdecimal() and text.isascii() and len(text) <= 20:
        number = int(text)
        if number <= largest:
            return number
    raise ValueError(f"{_short(text)} is no number from 0 to {largest}")


_text = lru_cache(maxsize=_REPEATS)(text_of)


@lru_cache(maxsize=_REPEATS)
def _word(text: str) -> str:
    return _known(text)


def _known(text: str) -> str:
    return "" if text in _NO_TEXT else text_of(text)


def _short(text: str) -> str:
    return repr(text[:60])
