"""The program behind tests/stub_sacct.py: `python -I -S stub_program.py FOLDER NAME ARGS...` plays the command NAME.

Standard library only, and little of it: a sync starts it many times. `rows` in FOLDER holds all rows in the order of
their end, what is open last; a selection of columns is projected once and kept, with numbers to find rows by.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from bisect import bisect_left

FIELD, ROW = b"\x1f", b"\x1e"  # in our files; a call's own mark takes the place of FIELD
NEVER = 1 << 62  # of what is open: it ends after everything
_TIMES = frozenset({"Submit", "Eligible", "Start", "End"})
_LEAST_UTS = 1_000_000  # less is "Invalid time specification" (parse_time.c; seen on 22.05.8)


class Asked:
    """The options of sacct that matter here."""

    def __init__(self, argv: list[str]) -> None:
        self.columns: list[str] = []
        self.mark, self.jobs = "|", ""
        self.since, self.until = "", ""
        self.allocations = self.duplicates = self.headless = self.help = self.version = False
        words = [word for argument in argv for word in _apart(argument)]
        values = iter(words)
        for word in values:
            if word in ("-o", "--format"):
                self.columns = next(values).split(",")
            elif word == "--delimiter":
                self.mark = next(values)
            elif word in ("-j", "--jobs"):
                self.jobs = next(values)
            elif word in ("-S", "--starttime"):
                self.since = next(values)
            elif word in ("-E", "--endtime"):
                self.until = next(values)
            elif word in ("-M", "--clusters", "-u", "--user"):
                next(values)
            self.allocations |= word in ("-X", "--allocations")
            self.duplicates |= word in ("-D", "--duplicates")
            self.headless |= word in ("-n", "--noheader")
            self.help |= word in ("-e", "--helpformat")
            self.version |= word in ("-V", "--version")


def _apart(argument: str) -> list[str]:
    """`--key=value` is two words, `-Xkey` and `-aDX` too."""
    if argument.startswith("--"):
        key, equals, value = argument.partition("=")
        return [key, value] if equals else [key]
    if argument.startswith("-") and len(argument) > 2:
        if argument[1] in "ojSEMu":
            return [argument[:2], argument[2:]]
        return [f"-{letter}" for letter in argument[1:]]
    return [argument]


def _fail(words: str) -> None:
    print(f"sacct: error: {words}", file=sys.stderr)
    sys.exit(1)


def _seconds(text: str, now: int) -> int:
    if text.startswith("uts"):
        if int(text[3:]) < _LEAST_UTS:
            _fail(f"Invalid time specification (pos=0): {text}")
        return int(text[3:])
    if text.startswith("now"):
        return now
    return int(time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))


class Shelf:
    """The rows of one kind (`rows` or `steps`) in one projection."""

    def __init__(self, folder: str, kind: str, columns: list[str], fields: list[str]) -> None:
        self._index = f"{folder}/{kind}.index"
        style = "epoch" if os.environ.get("SLURM_TIME_FORMAT") == "%s" else os.environ.get("TZ", "-")
        name = f"{folder}/cache/{kind}-{_hash(','.join([style, *columns]))}"
        try:
            if os.stat(name).st_mtime_ns < os.stat(f"{folder}/{kind}").st_mtime_ns:
                raise FileNotFoundError
        except FileNotFoundError:
            _project(f"{folder}/{kind}", name, columns, fields, epoch=style == "epoch")
        self._name = name
        self.at = _numbers(f"{name}.at")

    def index(self, what: str) -> memoryview:
        return _numbers(f"{self._index}.{what}")

    def take(self, rows: list[int] | range) -> bytes:
        """These rows, each with its ROW mark; neighbours are read at once."""
        parts, at = [], self.at
        with open(self._name, "rb") as file:
            begin = 0
            while begin < len(rows):
                end = begin + 1
                while end < len(rows) and rows[end] == rows[end - 1] + 1:
                    end += 1
                if isinstance(rows, range):
                    end = len(rows)
                file.seek(at[rows[begin]])
                parts.append(file.read(at[rows[end - 1] + 1] - at[rows[begin]]))
                begin = end
        return b"".join(parts)


def _numbers(path: str) -> memoryview:
    """64-bit numbers of a file, of which only the pages are read that somebody looks at."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return memoryview(b"").cast("q")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).cast("q")


def _hash(text: str) -> str:
    import zlib

    return f"{zlib.crc32(text.encode()):08x}"


def _project(source: str, name: str, columns: list[str], fields: list[str], *, epoch: bool) -> None:
    from array import array  # brings a fifth of this program's time with it

    with open(source, "rb") as file:
        rows = file.read().split(ROW)[:-1]
    places = [fields.index(column) for column in columns]
    out, at, offset = [], array("q", [0]), 0
    for row in rows:
        values = row.split(FIELD)
        picked = [
            values[place] if epoch or column not in _TIMES else _local(values[place])
            for column, place in zip(columns, places, strict=True)
        ]
        line = FIELD.join(picked) + ROW
        out.append(line)
        offset += len(line)
        at.append(offset)
    os.makedirs(os.path.dirname(name), exist_ok=True)
    for suffix, data in ((".at", at.tobytes()), ("", b"".join(out))):
        with open(f"{name}{suffix}.{os.getpid()}", "wb") as file:
            file.write(data)
        os.rename(f"{name}{suffix}.{os.getpid()}", f"{name}{suffix}")


def _local(value: bytes) -> bytes:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(int(value))).encode() if value.isdigit() else value


def _chosen(shelf: Shelf, asked: Asked, now: int, *, steps: bool) -> list[int] | range:
    """Row numbers, as the SQL of slurmdbd selects (as_mysql_jobacct_process.c)."""
    if asked.jobs:
        since = _seconds(asked.since, now) if asked.since else 0
        ids, order, ends = shelf.index("ids"), shelf.index("order"), shelf.index("end")
        found = []
        for wanted in asked.jobs.split(","):
            place = bisect_left(ids, int(wanted))
            while place < len(ids) and ids[place] == int(wanted):
                if ends[order[place]] >= since:
                    found.append(order[place])
                place += 1
        return sorted(set(found))
    since = _seconds(asked.since, now) if asked.since else now - now % 86400
    until = _seconds(asked.until, now) if asked.until else now
    until += until == now
    first = bisect_left(shelf.index("end"), since)
    if steps:
        return range(first, len(shelf.at) - 1)
    if asked.since and asked.until and since > until:
        _fail(f"Start time requested is after end time ({asked.since}, {asked.until})")
    eligible = shelf.index("eligible")
    rows = [row for row in range(first, len(eligible)) if 0 < eligible[row] < until]
    return range(first, len(eligible)) if len(rows) == len(eligible) - first else rows


def _newest(shelf: Shelf, rows: list[int] | range) -> list[int]:
    """Without -D: of each raw id the row that was submitted last."""
    raw, submitted = shelf.index("raw"), shelf.index("submit")
    best: dict[int, int] = {}
    for row in rows:
        other = best.get(raw[row])
        if other is None or submitted[row] >= submitted[other]:
            best[raw[row]] = row
    return sorted(best.values())


def _mode(folder: str) -> tuple[str, str]:
    """What goes wrong in this call: `MODE ARGUMENT`; one that is to happen so many times counts down."""
    try:
        with open(f"{folder}/mode") as file:
            mode, argument, times = file.read().split("\t")
    except FileNotFoundError:
        return "", ""
    if times:
        left = int(times) - 1
        if left < 0:
            return "", ""
        with open(f"{folder}/mode", "w") as file:
            file.write(f"{mode}\t{argument}\t{left}")
    return mode, argument


def sacct(folder: str, argv: list[str]) -> int:
    with open(f"{folder}/fields") as file:
        fields = file.read().split(",")
    asked = Asked(argv)
    if asked.version or asked.help:
        with open(f"{folder}/{'version' if asked.version else 'fields'}") as file:
            print(*file.read().split(","), sep="\n")
        return 0
    by_name = {name.lower(): name for name in fields}
    columns = []
    for column in asked.columns:
        if column.lower() not in by_name:
            _fail(f'Invalid field requested: "{column}"')
        columns.append(by_name[column.lower()])
    mark = os.fsencode(asked.mark)
    header = b"" if asked.headless else mark.join(map(str.encode, columns)) + b"\n"
    mode, argument = _mode(folder)
    if mode == "too_wide" and (not asked.jobs):
        now = _now(folder)
        begin = _seconds(asked.since, now) if asked.since else now
        if (_seconds(asked.until, now) if asked.until else now) - begin > int(argument):
            mode = "fail"
            argument = "slurmdb_jobs_get: Too wide of a date range in query"
    if mode in ("fail", "header_only"):
        sys.stdout.buffer.write(header)
        sys.stdout.flush()
        print(f"sacct: error: {argument or 'slurm_persist_conn_open: Connection refused'}", file=sys.stderr)
        return 1 if mode == "fail" else 0
    if mode == "no_header":
        return 0
    if mode == "hang":
        sys.stdout.buffer.write(header)
        sys.stdout.flush()
        time.sleep(3600)
    _answer(folder, asked, columns, fields, header, mark, cut=mode == "cut")
    if mode == "stderr":
        print(f"sacct: error: {argument or 'slurmdbd: reply is not whole'}", file=sys.stderr)
    return 0


def _answer(
    folder: str, asked: Asked, columns: list[str], fields: list[str], header: bytes, mark: bytes, *, cut: bool
) -> None:
    now = _now(folder)
    shelf = Shelf(folder, "rows", columns, fields)
    rows = _chosen(shelf, asked, now, steps=False)
    data = shelf.take(rows if asked.duplicates else _newest(shelf, rows))
    if not asked.allocations:
        shelf = Shelf(folder, "steps", columns, fields)
        data += shelf.take(_chosen(shelf, asked, now, steps=True))
    data = header + data.replace(FIELD, mark).replace(ROW, b"\n")
    if cut:
        data = data[: max(len(header), len(data) * 2 // 3)].rstrip(b"\n")[:-3]
    with open(1, "wb", closefd=False) as out:
        out.write(data)


def _now(folder: str) -> int:
    try:
        with open(f"{folder}/now") as file:
            return int(file.read())
    except FileNotFoundError:
        return int(time.time())


def _told(folder: str, name: str, argv: list[str]) -> int:
    """The prepared answer whose words are the first words of the call."""
    words = [name, *(argument for argument in argv if not argument.startswith("-"))]
    for length in range(len(words), 0, -1):
        base = f"{folder}/answers/{'_'.join(words[:length])}".replace("=", "-")
        if os.path.exists(base):
            with open(base, "rb") as file:
                status, _, rest = file.read().partition(b"\n")
            said, _, error = rest.partition(ROW)
            sys.stdout.buffer.write(said)
            sys.stderr.buffer.write(error)
            return int(status)
    print(f"{name}: error: the stub has no answer for {' '.join(words)}", file=sys.stderr)
    return 1


def main() -> int:
    folder, name, argv = sys.argv[1], sys.argv[2], sys.argv[3:]
    with open(f"{folder}/calls", "a") as file:
        print(repr([name, *argv]), file=file)
    return sacct(folder, argv) if name == "sacct" else _told(folder, name, argv)


if __name__ == "__main__":
    sys.exit(main())
