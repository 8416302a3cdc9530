"""Slurm's accounting commands as a stub on PATH: for speed, and for replies that no healthy Slurm gives.

    stub = StubSlurm(tmp_path / "stub")
    stub.write(make_rows(100, seed=1))
    Cli(stub.environ(os.environ), tmp_path / "runs")("account", "sync")
    stub.misbehave(Mode.CUT, times=1)

Rows are mappings of sacct's columns to texts, times as epoch seconds. What selects them is Slurm's own rule (see
stub_program.py); the other commands give prepared answers.
"""

from __future__ import annotations

import ast
import random
import re
import shlex
import shutil
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from tests.stub_program import NEVER, ROW

_PROGRAM = Path(__file__).with_name("stub_program.py")
_PROGRAMS = ("sacct", "sacctmgr", "sbatch", "scontrol", "sdiag", "sinfo", "squeue", "sreport", "sshare")
# `sacct --helpformat` of 25.11
_OFFERED = """
    Account AdminComment AllocCPUS AllocNodes AllocTRES AssocID AveCPU AveCPUFreq AveDiskRead AveDiskWrite AvePages
    AveRSS AveVMSize BlockID Cluster Comment Constraints ConsumedEnergy ConsumedEnergyRaw Container CPUTime CPUTimeRAW
    DBIndex DerivedExitCode Elapsed ElapsedRaw Eligible End ExitCode Extra FailedNode Flags GID Group JobID JobIDRaw
    JobName Layout Licenses MaxDiskRead MaxDiskReadNode MaxDiskReadTask MaxDiskWrite MaxDiskWriteNode MaxDiskWriteTask
    MaxPages MaxPagesNode MaxPagesTask MaxRSS MaxRSSNode MaxRSSTask MaxVMSize MaxVMSizeNode MaxVMSizeTask McsLabel
    MinCPU MinCPUNode MinCPUTask NCPUS NNodes NodeList NTasks Partition Planned PlannedCPU PlannedCPURAW Priority QOS
    QOSRAW QOSREQ Reason ReqCPUFreq ReqCPUFreqGov ReqCPUFreqMax ReqCPUFreqMin ReqCPUS ReqMem ReqNodes ReqTRES
    Reservation ReservationId Restarts Segment SLUID Start State StdErr StdIn StdOut Submit SubmitLine Suspended
    SystemComment SystemCPU Timelimit TimelimitRaw TotalCPU TRESUsageInAve TRESUsageInMax TRESUsageInMaxNode
    TRESUsageInMaxTask TRESUsageInMin TRESUsageInMinNode TRESUsageInMinTask TRESUsageInTot TRESUsageOutAve
    TRESUsageOutMax TRESUsageOutMaxNode TRESUsageOutMaxTask TRESUsageOutTot UID User UserCPU WCKey WCKeyID
    WorkDir
"""
FIELDS = tuple(_OFFERED.split())
NEWER = frozenset({"SLUID", "Restarts", "FailedNode", "Segment", "StdErr", "StdIn", "StdOut", "Extra", "QOSREQ"})
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's

StubRow = Mapping[str, str]


class Mode(StrEnum):
    """How sacct fails."""

    FAIL = "fail"  # after its header, with an error and status 1
    HEADER_ONLY = "header_only"  # the same with status 0, as before 23.11.4
    NO_HEADER = "no_header"  # nothing at all, status 0
    STDERR = "stderr"  # every row, status 0, and an error
    HANG = "hang"
    CUT = "cut"  # in the middle of a line, status 0
    TOO_WIDE = "too_wide"  # MaxQueryTimeRange; `argument` is the range in seconds


class StubSlurm:
    """The commands, in `folder`/bin, and what they answer."""

    def __init__(self, folder: Path, cluster: str = "stub") -> None:
        self.folder, self.cluster = folder, cluster
        for name in ("bin", "answers", "cache"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "slurm.conf").write_text(f"ClusterName={cluster}\n")
        (folder / "version").write_text("slurm 25.11.8")
        self.offer(FIELDS)
        for name in _PROGRAMS:
            argv = shlex.join([sys.executable, "-I", "-S", str(_PROGRAM), str(folder), name])
            (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {argv} "$@"\n')
            (folder / "bin" / name).chmod(0o755)
        self._prepare()
        self.write(())

    def environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with this stub as the only Slurm."""
        kept = {key: value for key, value in base.items() if not key.startswith(("SLURM", "SACCT", "SBATCH"))}
        path = f"{self.folder / 'bin'}:{base.get('PATH', '/usr/bin:/bin')}"
        return {**kept, "PATH": path, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def offer(self, fields: Sequence[str]) -> None:
        """The columns that this sacct knows (--helpformat); to be called before `write`."""
        self.fields = tuple(fields)
        (self.folder / "fields").write_text(",".join(fields))

    def write(self, rows: Sequence[StubRow], steps: Sequence[StubRow] = ()) -> None:
        """All that slurmdbd has from now on; `steps` repeat DBIndex, JobID, JobIDRaw and User as sacct prints them."""
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        self._shelve("rows", rows)
        self._shelve("steps", steps)
        alive = [row["JobIDRaw"] for row in rows if row["State"].split()[0] in ("RUNNING", "SUSPENDED")]
        self.answer("squeue", said="".join(f"{raw}\n" for raw in alive))

    def answer(self, *words: str, said: str = "", error: str = "", status: int = 0) -> None:
        """What a command prints whose first words, options left out, are these (`"scontrol", "show", "config"`)."""
        data = f"{status}\n{said}".encode(errors="surrogateescape") + ROW + error.encode()
        (self.folder / "answers" / "_".join(words).replace("=", "-")).write_bytes(data)

    def set_now(self, now_s: int) -> None:
        """What `now` and a missing -E mean."""
        (self.folder / "now").write_text(str(now_s))

    def misbehave(self, mode: Mode, argument: str = "", times: int | None = None) -> None:
        """From now on, or for the next so many calls of sacct (its --helpformat and --version not counted)."""
        (self.folder / "mode").write_text(f"{mode}\t{argument}\t{'' if times is None else times}")

    def behave(self) -> None:
        (self.folder / "mode").unlink(missing_ok=True)

    def calls(self, name: str = "sacct") -> list[list[str]]:
        """The arguments of each call of this command so far."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call[1:] for call in map(ast.literal_eval, lines) if call[0] == name]

    def forget_calls(self) -> None:
        (self.folder / "calls").unlink(missing_ok=True)

    def _shelve(self, kind: str, rows: Sequence[StubRow]) -> None:
        ordered = sorted(rows, key=lambda row: _second(row, "End", NEVER))
        fields = self.fields
        with (self.folder / kind).open("wb") as file:
            for row in ordered:
                text = "\x1f".join([row.get(field, "") for field in fields])
                file.write(text.encode("utf-8", "surrogateescape") + ROW)
        ids = sorted((base, number) for number, row in enumerate(ordered) for base in _ids(row))
        columns = {
            "end": [_second(row, "End", NEVER) for row in ordered],
            "eligible": [_second(row, "Eligible", 0) for row in ordered],
            "submit": [_second(row, "Submit", 0) for row in ordered],
            "raw": [int(row["JobIDRaw"].partition(".")[0]) for row in ordered],
            "ids": [base for base, _ in ids],
            "order": [number for _, number in ids],
        }
        for name, values in columns.items():
            (self.folder / f"{kind}.index.{name}").write_bytes(array("q", values).tobytes())

    def _prepare(self) -> None:
        self.answer("scontrol", "ping", said="Slurmctld(primary) at head is UP\n")
        self.answer(
            "scontrol",
            "show",
            "config",
            said=(
                "Configuration data as of 1796014956\n"
                "AccountingStorageTRES   = cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu,gres/gpu:h100\n"
                "AccountingStorageType   = accounting_storage/slurmdbd\n"
                f"ClusterName             = {self.cluster}\n"
                "PrivateData             = none\n"
                "SLURM_VERSION           = 25.11.8\n"
            ),
        )
        self.answer("sdiag", said="Agent queue size:     0\nDBD Agent queue size: 0\n")
        self.answer("sacctmgr", "show", "event", said="")
        self.answer("sacctmgr", "show", "events", said="")
        self.answer("sacctmgr", "show", "user", said="Administrator\n")
        self.answer("sacctmgr", "show", "configuration", said="PrivateData             = none\n")
        self.answer("sreport", said="")
        self.answer("sshare", said="")


def _second(row: StubRow, column: str, unknown: int) -> int:
    text = row.get(column, "")
    return int(text) if text.isdigit() else unknown


def _ids(row: StubRow) -> set[int]:
    """What -j finds this row by: its raw id, and the id of its array or hetjob."""
    return {whole_numbers(row["JobID"])[0], whole_numbers(row["JobIDRaw"])[0]}


def whole_numbers(text: str) -> list[int]:
    return [int(word) for word in re.findall(r"[0-9]+", text)]


def sluid(number: int) -> str:
    """The same number as slurmdbd 24.11 and newer prints it."""
    return "s" + "".join(_ALPHABET[number >> shift & 31] for shift in range(60, -1, -5))


def make_rows(
    count: int,
    seed: int,
    *,
    since_s: int = 1_793_000_000,
    span_s: int = 30 * 86400,
    mean_s: int = 7200,
    first_id: int = 1000,
) -> list[dict[str, str]]:
    """So many rows of a busy GPU cluster, submitted within `span_s` from `since_s`: arrays, requeues, 1 to 64 nodes.

    They run for `mean_s` on average, and one in a thousand is open. The same arguments make the same rows.
    """
    chance = random.Random(f"{count} {seed}")
    rows: list[dict[str, str]] = []
    for number, (job, raw, after_s) in enumerate(_attempts(chance, count)):
        submit = since_s + int(number / count * span_s) + after_s
        rows.append(_row(chance, submit, mean_s) | _identity(number, submit, job, raw, first_id))
    return rows


def _identity(number: int, submit: int, job: str, raw: int, first_id: int) -> dict[str, str]:
    base, underscore, element = job.partition("_")
    index = (3000 << 52) + (((submit * 1000) << 10) & ((1 << 52) - 1)) + number % 1024
    return {
        "DBIndex": str(index),
        "SLUID": sluid(index),
        "JobID": f"{first_id + int(base)}{underscore}{element}",
        "JobIDRaw": str(first_id + raw),
    }


def _attempts(chance: random.Random, count: int) -> list[tuple[str, int, int]]:
    """(suffix of the id after its base offset, raw offset, seconds) of each row; one job has several in a row."""
    found: list[tuple[str, int, int]] = []
    raw = 0
    while len(found) < count:
        kind = chance.random()
        if kind < 0.03:  # an array of ten: elements have raw ids of their own
            base, raw = raw, raw + 10
            found += [(f"{base}_{element}", base + element, 0) for element in range(10)]
        elif kind < 0.10:  # requeued, once or twice
            found += [(f"{raw}", raw, again) for again in range(chance.choice((2, 2, 3)))]
            raw += 1
        else:
            found.append((f"{raw}", raw, 0))
            raw += 1
    return found[:count]


_NODES = (1,) * 60 + (2,) * 16 + (4,) * 11 + (8,) * 7 + (16,) * 3 + (32,) * 2 + (64,)
_ENDS = (
    ("COMPLETED", "0:0", "0:0"),
    ("COMPLETED", "0:0", "0:0"),
    ("COMPLETED", "0:0", "0:0"),
    ("COMPLETED", "0:0", "0:0"),
    ("COMPLETED", "0:0", "0:0"),
    ("COMPLETED", "0:0", "0:0"),
    ("COMPLETED", "0:0", "0:0"),
    ("FAILED", "1:0", "1:0"),
    ("CANCELLED by 1000", "0:0", "0:15"),
    ("TIMEOUT", "0:0", "0:0"),
)
_AGAIN = (("REQUEUED", "0:0"), ("PREEMPTED", "0:0"), ("NODE_FAIL", "1:0"))
_MODELS = ("h100", "h100", "a100", "")


_ALL_ALIKE = {
    "Cluster": "stub",
    "Group": "users",
    "UID": "1000",
    "QOS": "normal",
    "Elapsed": "01:00:00",
    "Suspended": "00:00:00",
    "Timelimit": "1-00:00:00",
    "TimelimitRaw": "1440",
    "CPUTime": "16:00:00",
    "TotalCPU": "00:00:00",
    "UserCPU": "00:00:00",
    "SystemCPU": "00:00:00",
    "Restarts": "0",
    "Priority": "1000",
    "Reason": "None",
    "SubmitLine": "sbatch train.sh",
    "Flags": "SchedMain",
}


def _row(chance: random.Random, submit: int, mean_s: int) -> dict[str, str]:
    nodes, model = chance.choice(_NODES), chance.choice(_MODELS)
    gpus = nodes * 8 if nodes > 1 else chance.choice((0, 1, 2, 4, 8))
    start = submit + int(chance.expovariate(1 / 900)) + 1
    elapsed = int(chance.expovariate(1 / mean_s)) + 1
    state, code, derived = chance.choice(_ENDS)
    first = chance.randrange(1, 900)
    failed = ""
    if chance.random() < 0.07:
        state, code = chance.choice(_AGAIN)
        failed = f"gpu{first:04}" if state == "NODE_FAIL" else ""
    is_open = chance.random() < 0.001
    user = f"user{chance.randrange(40):02}"
    return {
        **_ALL_ALIKE,
        **_held(nodes, gpus, model),
        "JobName": chance.choice(("train", "eval sweep", "nccl-test", "prüfung", "a|b;c")),
        "User": user,
        "WorkDir": f"/home/{user}",
        "Account": f"account{chance.randrange(12):02}",
        "Partition": chance.choice(("dgx", "dgx", "low")),
        "State": "RUNNING" if is_open else state,
        "ExitCode": "0:0" if is_open else code,
        "DerivedExitCode": "0:0" if is_open else derived,
        "Submit": str(submit),
        "Eligible": str(submit),
        "Start": str(start),
        "End": "Unknown" if is_open else str(start + elapsed),
        "ElapsedRaw": str(elapsed),
        "NodeList": f"gpu{first:04}" if nodes == 1 else f"gpu[{first:04}-{first + nodes - 1:04}]",
        "FailedNode": "" if is_open else failed,
    }


def _held(nodes: int, gpus: int, model: str) -> dict[str, str]:
    tres = [f"billing={gpus or nodes}", f"cpu={nodes * 16}"]
    tres += [f"gres/gpu:{model}={gpus}"] * bool(model and gpus) + [f"gres/gpu={gpus}"] * bool(gpus)
    text = ",".join([*tres, f"mem={nodes * 131072}M", f"node={nodes}"])
    return {
        **dict.fromkeys(("NNodes", "AllocNodes", "ReqNodes"), str(nodes)),
        **dict.fromkeys(("NCPUS", "AllocCPUS", "ReqCPUS"), str(nodes * 16)),
        **dict.fromkeys(("AllocTRES", "ReqTRES"), text),
        "ReqMem": f"{nodes * 131072}M",
    }


def make_steps(rows: Sequence[StubRow]) -> Iterator[dict[str, str]]:
    """The steps of these rows: `batch`, `extern` and one of srun that ended as its job did."""
    for row in rows:
        for step in ("batch", "extern", "0"):
            yield {
                **{key: row[key] for key in ("DBIndex", "Cluster", "Start", "End", "State", "ExitCode", "NodeList")},
                "JobID": f"{row['JobID']}.{step}",
                "JobIDRaw": f"{row['JobIDRaw']}.{step}",
                "JobName": step if step != "0" else "train",
                "Submit": row["Start"],
                "NTasks": row["NNodes"],
                "AllocTRES": row["AllocTRES"],
            }
