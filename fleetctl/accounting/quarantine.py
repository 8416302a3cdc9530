"""What could not be read is kept as it came, once, until it can be."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import Any

from msgspec import Struct
from sqlalchemy import Column, Connection, delete, func, select

from fleetctl.accounting import bulk
from fleetctl.accounting.framing import text_of
from fleetctl.accounting.tables import quarantine

_COLUMNS = ("cluster", "source", "key", "at_s", "why", "digest", "raw")
_MARK = re.compile("\x1f[0-9a-f]{8}\x1f")  # of one call to sacct (slurm.text_books): each call draws another
_A_STATEMENT = 5_000  # values; SQLite takes 32,766


class Unread(Struct, frozen=True):
    """A piece that could not be read, as it came (foreign bytes as surrogates), and why in one line.

    `key`: the record that it is a row of; None: not known.
    """

    raw: str
    why: str
    key: str | None = None


def raw_row(row: Sequence[str], columns: Sequence[str] = ()) -> str:
    """The row under a line with the names of its columns, so that it can be read later, whatever is asked for then."""
    return "\n".join("\x1f".join(fields) for fields in (columns, row) if fields)


def digest_of_raw(raw: str) -> str:
    return blake2b(_bytes(raw), digest_size=16).hexdigest()


def keep(connection: Connection, cluster: str, source: str, pieces: Sequence[Unread], now_s: int) -> int:
    """Puts them aside, each in place of what lay there of the same record, and returns how many were not there yet."""
    if not pieces:
        return 0
    by_digest = {digest_of_raw(piece.raw): piece for piece in pieces}
    fresh = by_digest.keys() - kept(connection, cluster, source)
    release_keys(connection, cluster, source, {by_digest[digest].key or "" for digest in fresh} - {""})
    rows = [
        (cluster, source, piece.key, now_s, text_of(piece.why), digest, _bytes(piece.raw))
        for digest, piece in by_digest.items()
        if digest in fresh
    ]
    bulk.insert(connection, quarantine, _COLUMNS, rows)
    return len(rows)


def kept(connection: Connection, cluster: str, source: str) -> frozenset[str]:
    """The digests of what was put aside."""
    query = select(quarantine.c.digest).where(quarantine.c.cluster == cluster, quarantine.c.source == source)
    return frozenset(connection.scalars(query))


def kept_keys(connection: Connection, cluster: str, source: str) -> frozenset[str]:
    """The records of which something was put aside, where that is known."""
    query = select(quarantine.c.key).where(quarantine.c.cluster == cluster, quarantine.c.source == source)
    return frozenset(key for key in connection.scalars(query) if key is not None)


def release(connection: Connection, cluster: str, source: str, digests: Collection[str]) -> None:
    """Forgets what could be read after all."""
    _forget(connection, cluster, source, quarantine.c.digest, digests)


def release_keys(connection: Connection, cluster: str, source: str, keys: Collection[str]) -> None:
    """Forgets what was put aside of these records: a row of them was read."""
    _forget(connection, cluster, source, quarantine.c.key, keys)


def _forget(connection: Connection, cluster: str, source: str, column: Column[Any], values: Collection[str]) -> None:
    mine = (quarantine.c.cluster == cluster, quarantine.c.source == source)
    ordered = sorted(values)
    for start in range(0, len(ordered), _A_STATEMENT):
        some = column.in_(ordered[start : start + _A_STATEMENT])
        connection.execute(delete(quarantine).where(*mine, some))


def count(connection: Connection, cluster: str) -> int:
    query = select(func.count()).select_from(quarantine).where(quarantine.c.cluster == cluster)
    return connection.scalar(query) or 0


def _bytes(raw: str) -> bytes:
    return _MARK.sub("\x1f", raw).encode("utf-8", "surrogateescape")
