"""Rows as sacct prints them, for tests of what reads them."""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.accounting.model import Record, StepRecord
from fleetctl.accounting.rows import parse_record, parse_step
from fleetctl.slurm.framing import frame
from fleetctl.slurm.sacct_fields import RECORD_FIELDS, STEP_FIELDS

MARK = "\x1fc0ffee00\x1f"
RECORD = {
    "DBIndex": "4711",
    "JobID": "123",
    "User": "alice",
    "UID": "1000",
    "Account": "physics",
    "Partition": "dgx",
    "QOS": "normal",
    "JobName": "train",
    "State": "COMPLETED",
    "ExitCode": "0:0",
    "DerivedExitCode": "0:0",
    "Submit": "1796014982",
    "Eligible": "1796014983",
    "Start": "1796014984",
    "End": "1796014994",
    "Suspended": "00:00:00",
    "TimelimitRaw": "1440",
    "AllocTRES": "billing=16,cpu=16,gres/gpu:h100=8,gres/gpu=8,mem=128G,node=2",
    "NodeList": "gpu[01-02]",
    "Comment": "fleetctl:run-1",
    "Reason": "None",
    "AdminComment": "",
    "JobIDRaw": "123",
}
STEP = {
    "DBIndex": "4711",
    "JobID": "123.0",
    "JobName": "train",
    "State": "COMPLETED",
    "ExitCode": "0:0",
    "Start": "1796014984",
    "End": "1796014994",
    "NodeList": "gpu[01-02]",
    "NTasks": "16",
    "JobIDRaw": "123.0",
}


def record_row(**changes: str) -> tuple[str, ...]:
    """A row over RECORD_FIELDS."""
    return tuple({**RECORD, **changes}[name] for name in RECORD_FIELDS)


def step_row(**changes: str) -> tuple[str, ...]:
    return tuple({**STEP, **changes}[name] for name in STEP_FIELDS)


def record(**changes: str) -> Record:
    """What is read of such a row; columns that RECORD_FIELDS has not are added before the last."""
    fields = {**RECORD, **changes}
    columns = (*RECORD_FIELDS[:-1], *(name for name in changes if name not in RECORD), RECORD_FIELDS[-1])
    return parse_record(columns, tuple(fields[name] for name in columns))


def step(**changes: str) -> StepRecord:
    return parse_step(STEP_FIELDS, step_row(**changes))


def printed(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]], mark: str = MARK) -> str:
    """What sacct prints of these rows."""
    return "".join(mark.join(row) + "\n" for row in (columns, *rows))


def read_back(*rows: tuple[str, ...]) -> tuple[Record, ...]:
    """Printed, framed and read."""
    found = frame(printed(RECORD_FIELDS, rows), MARK)
    assert not found.unframed
    return tuple(parse_record(found.columns, row) for row in found.rows)
