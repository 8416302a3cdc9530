"""Host lists of accounting records, quickly: a sync expands one for each new record, mostly of the simplest forms."""

from __future__ import annotations

import re
from functools import lru_cache

from fleetctl.slurm.hosts import MAX_HOSTS, expand

_ONE = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_RANGES = re.compile(r"([A-Za-z0-9._-]+)\[([0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*)\]", re.ASCII)
_KEPT = 16_384  # lists, most of a few names


@lru_cache(maxsize=_KEPT)
def hosts_of(text: str) -> tuple[str, ...]:
    """The hosts of a list, each once; none where it is no list, as `None assigned`, or one of more than MAX_HOSTS."""
    if _ONE.fullmatch(text):
        return (text,)
    if (found := _RANGES.fullmatch(text)) and (names := _ranged(found[1], found[2])):
        return names
    try:
        return expand(text)
    except ValueError:
        return ()


def _ranged(prefix: str, ranges: str) -> tuple[str, ...]:
    """`n`, `01-03,7`; nothing where ClusterShell has to judge (padding that changes, ranges that fall)."""
    numbers: list[str] = []
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        high = high or low
        first, last, width = int(low), int(high), len(low)
        if first > last or len(high) < width or len(numbers) + last - first >= MAX_HOSTS:
            return ()
        if "0" in (low[0], high[0]) and len(high) != width:
            return ()
        numbers += [f"{number:0{width}}" for number in range(first, last + 1)]
    return tuple(dict.fromkeys(prefix + number for number in numbers))
