"""The results of chaos: one JSON object a line, and the table of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from tests.chaos.play import Result


def read(path: Path) -> list[Result]:
    """What was played before; a last line that a kill tore does not count."""
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            found.append(msgspec.json.decode(line, type=Result))
        except msgspec.DecodeError:
            continue
    return found


def append(path: Path, result: Result) -> None:
    with open(path, "ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


def newest(results: Iterable[Result]) -> list[Result]:
    """The newest result of each scenario."""
    return list({(result.seed, result.daemon): result for result in results}.values())


def table(results: Sequence[Result]) -> str:
    """A Markdown table: each fault, how often it was done, and how the runs ended that had it."""
    rows = [
        "| fault | times | completed | held | cancelled | other | promises broken |",
        "|---|---|---|---|---|---|---|",
    ]
    counts = Counter(fault for result in results for fault in result.applied)
    for fault, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        with_it = [result for result in results if fault in result.applied]
        rows.append(_row(fault, count, with_it))
    rows.append(_row("**all**", counts.total(), results))
    return "\n".join(rows)


def _row(name: str, count: int, results: Sequence[Result]) -> str:
    ended = Counter(
        result.state if result.state in ("completed", "held", "cancelled") else "other" for result in results
    )
    cells = [ended["completed"], ended["held"], ended["cancelled"], ended["other"], sum(len(r.broken) for r in results)]
    return "| " + " | ".join([name, str(count), *map(str, cells)]) + " |"


def line(result: Result) -> str:
    """One result for a person."""
    name = f"{result.seed}{' with daemon' if result.daemon else ''}"
    what = ", ".join(result.applied) or "nothing"
    end = f"{result.state or 'no end'} after {result.seconds:.0f} s, attempts {' '.join(result.attempts)}"
    head = f"seed {name}: {what}: {end}"
    return "\n".join([head, *(f"  BROKEN: {words}" for words in result.broken)])
