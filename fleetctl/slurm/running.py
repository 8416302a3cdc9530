"""Rows about what a job holds and runs: its allocation, its steps, and where its nodes are reached.

They come from `squeue --Format` and `sinfo --Format`, framed by slurm.rows. The only text in them that a user writes
is a step's name, and no text can contain the mark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fleetctl.errors import CannotTell, JobUnknown
from fleetctl.slurm.allocation import Allocation, Step
from fleetctl.slurm.model import Job, JobId, JobState, has_task
from fleetctl.slurm.rows import count_gpus, read_count, read_text, read_time, required_int, split_rows

# squeue.1 --Format, all of them from 22.05 on; `Name:MARK` sets no width, so that nothing is cut.
ALLOCATION_FIELDS = (
    *("JobID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "State", "RestartCnt"),
    *("NodeList", "BatchHost", "tres-alloc", "StartTime", "EndTime", "PreemptTime", "Name", "WCKey", "JobID"),
)
STEP_FIELDS = ("JobID", "StepID", "StepName", "Nodes", "NumTasks", "StepState", "JobID")
ENDPOINT_FIELDS = ("NodeList", "NodeAddr", "Port", "NodeList")  # sinfo.1 --Format

_GIVEN = re.compile(r"[0-9]{1,10}", re.ASCII)  # else N/A, or the rest of an array
_JOB_GRES = re.compile(r" JOB_GRES=(\S*)", re.ASCII)
_STEP_ID = re.compile(r"[0-9]{1,10}(?:[_+][0-9]{1,10})?\.[0-9]{1,10}", re.ASCII)


def find_allocation(text: str, mark: str, wanted: JobId) -> list[str]:
    """The row of `wanted` in a reply over ALLOCATION_FIELDS; a plain number is the row that has it as its own.

    :raises JobUnknown: it has no such row.
    :raises CannotTell: the reply cannot be framed.
    """
    for row in split_rows(text, mark, len(ALLOCATION_FIELDS)):
        if _is_row_of(row, wanted):
            return row
    raise JobUnknown(f"Slurm does not know this job: {wanted}")


def single_id(row: list[str]) -> str:
    """The id with which scontrol shows this row alone: a plain number may be a whole array or hetjob."""
    raw, array, task, leader, offset = row[:5]
    if _GIVEN.fullmatch(leader) and _GIVEN.fullmatch(offset):
        return f"{leader}+{offset}"
    return f"{array}_{task}" if _GIVEN.fullmatch(task) else raw


def _is_row_of(row: list[str], wanted: JobId) -> bool:
    raw, array, task, leader, offset = row[:5]
    if wanted.array_index is not None:
        return array == str(wanted.base) and (task == str(wanted.array_index) or has_task(task, wanted.array_index))
    if wanted.het_offset is not None:
        return (leader, offset) == (str(wanted.base), str(wanted.het_offset))
    return raw == str(wanted.base)


def has_nodes(row: list[str]) -> bool:
    return bool(read_text(row[7]))


def parse_allocation(row: list[str], shown: str) -> Allocation:
    """A row of find_allocation, and what `scontrol show job --details --oneliner` says of the same job.

    :raises CannotTell: it cannot be read.
    """
    nodes = read_text(row[7])
    return Allocation(
        raw_id=required_int(row[0], "raw job id"),
        state=JobState.parse(row[5]),
        restarts=read_count(row[6]),
        node_list=nodes,
        batch_host=read_text(row[8]),
        alloc_tres=read_text(row[9]) if nodes else "",  # of a pending job Slurm shows what it asked for
        gpus=_gpus(shown, name=row[13], wckey=row[14]) if nodes else None,
        start_time=read_time(row[10]),
        end_time=read_time(row[11]),
        preempt_time=read_time(row[12]),
    )


def gpus_of(job: Job, shown: str) -> int | None:
    """The same of a job that is known already."""
    return _gpus(shown, name=job.name, wckey=job.wckey)


def _gpus(shown: str, *, name: str, wckey: str) -> int | None:
    """The GPUs in JOB_GRES, which is there whenever a job has nodes (`(null)` for none).

    Two texts that a user writes stand before it; we know them from squeue, where no text can forge a field, and step
    over them. An account is lower case, whoever writes it. Everything else of a user comes after MinCPUsNode.
    """
    _, found, rest = shown.partition(f" JobName={name} ")
    if not found or " JobName=" in shown[: shown.index(found)]:
        return None  # it was renamed, or requeued, between the two queries
    rest = rest.replace(f" WCKey={wckey} ", " ", 1)
    match = _JOB_GRES.search(rest.partition(" MinCPUsNode=")[0])
    return count_gpus(match[1]) if match else None


def parse_steps(text: str, mark: str) -> tuple[Step, ...]:
    """Steps of `squeue --steps --Format=...` over STEP_FIELDS.

    :raises CannotTell: a row cannot be read.
    """
    return tuple(_step(row) for row in split_rows(text, mark, len(STEP_FIELDS)))


def _step(row: list[str]) -> Step:
    _, dot, suffix = row[1].rpartition(".")  # `3_1.0`, `3+0.0`: of the array, of the hetjob
    if not dot or not suffix:
        raise CannotTell(f"Slurm's reply cannot be read: {row[1][:80]!r} is no step id")
    return Step(
        id=f"{required_int(row[0], 'raw job id')}.{suffix}",
        name=row[2],
        nodes=read_text(row[3]),
        task_count=read_count(row[4]),
        state=row[5],
    )


def check_step_id(text: str) -> str:
    """`text` again, if it is the id of a numbered step, such as `12.3` or `12_4.0`.

    :raises ValueError: it is not; scancel would end a whole job for `12`, and knows no `12.batch` (22.05).
    """
    if _STEP_ID.fullmatch(text) is None:
        raise ValueError(f"not the id of a numbered step: {text[:80]!r}")
    return text


def parse_endpoints(text: str, mark: str, wanted: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Address and port of each node in `wanted` that the reply over ENDPOINT_FIELDS has, in the order of `wanted`.

    :raises CannotTell: a row cannot be read.
    """
    found = {
        row[0]: (row[1], required_int(row[2], "port")) for row in split_rows(text, mark, len(ENDPOINT_FIELDS))
    }  # a row per node and partition
    return {name: found[name] for name in dict.fromkeys(wanted) if name in found}
