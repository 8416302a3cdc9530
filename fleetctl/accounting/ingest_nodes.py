"""What the nodes' checks told, from the folder that the fleet shares, into the database: each verdict once.

Others may write in that folder: a file is only what the node of its name may have said. A node whose newest verdict is
there already costs the reading of that one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from msgspec import Struct
from sqlalchemy import Connection, select

from fleetctl.accounting import bulk
from fleetctl.accounting.framing import text_of
from fleetctl.accounting.ingest_values import LARGEST, Row, milliseconds_of, words_of
from fleetctl.accounting.quarantine import Unread, digest_of_raw, keep, kept, release
from fleetctl.accounting.tables import clusters, gpu_use, node_findings, node_verdicts
from fleetctl.errors import CannotTell
from fleetctl.health.model import Verdict
from fleetctl.health.spool import NodeSaid, read_history, read_shared
from fleetctl.health.store import Foreign
from fleetctl.health.store import words_of as words_of_error

SOURCE = "node"  # in `quarantine`

_KEY = ("cluster_id", "node", "at_ms", "phase", "job_id")
_VERDICTS = (*_KEY, "decision", "reason", "boot_id", "passed")
_FINDINGS = (*_KEY, "sequence", "check_id", "outcome", "care", "subject", "part", "words", "code")
_USE = ("cluster_id", "node", "at_ms", "job_id", "gpu", "uuid", "used_ms", "energy_mj", "memory_bytes")
_FIRST_MS, _LAST_MS = 0, 253_402_300_800_000  # 1970 to 9999: a time that no node's clock shows is no time

Note = Callable[[str], object]


class _Rows(Struct):
    verdicts: list[Row]
    findings: list[Row]
    use: list[Row]


def ingest_nodes(connection: Connection, cluster: str, folder: str, note: Note, *, now_s: int) -> int:
    """How many verdicts are new; in the caller's transaction. `cluster` is the name of one that is known.

    A node whose files make no sense is put aside with the reason, and counts again once they do.
    :raises CannotTell: the folder cannot be read.
    """
    cluster_id = connection.scalar(select(clusters.c.id).where(clusters.c.name == cluster))
    assert cluster_id is not None, "the records of a cluster come before its nodes"
    try:
        said = read_shared(folder)
    except OSError as error:
        remedy = "is it mounted here, and may you read it?"
        raise CannotTell(f"verdicts of nodes cannot be read in {folder}: {error.strerror}", remedy=remedy) from None
    rows, unread = _Rows([], [], []), []
    for one in said:
        key = None if one.latest is None else _key(cluster_id, one.latest)
        if key is None:
            why = text_of(one.trouble) or f"{one.node}.json has a time or number that no node tells"
            unread.append(Unread(one.node, why))
            note(f"node {one.node} is not counted: {why}")
        elif not _known(connection, cluster_id, [key]):
            _add_new(connection, cluster_id, folder, one, rows, note)
    bulk.insert(connection, node_verdicts, _VERDICTS, rows.verdicts)
    bulk.insert(connection, node_findings, _FINDINGS, rows.findings)
    bulk.insert(connection, gpu_use, _USE, rows.use)
    keep(connection, cluster, SOURCE, unread, now_s)
    release(connection, cluster, SOURCE, kept(connection, cluster, SOURCE) - {digest_of_raw(one.raw) for one in unread})
    return len(rows.verdicts)


def _add_new(connection: Connection, cluster_id: int, folder: str, said: NodeSaid, rows: _Rows, note: Note) -> None:
    """Of the node's history what is not there yet, and its newest verdict even where the history cannot be read."""
    verdicts: list[Verdict] = []
    try:
        verdicts += read_history(folder, said.node)
    except (OSError, Foreign) as error:
        note(f"node {said.node}: only its newest verdict is counted: {words_of_error(error)}")
    if said.latest is not None:
        verdicts.append(said.latest)
    by_key: dict[Row, Verdict] = {}
    for verdict in verdicts:
        if (key := _key(cluster_id, verdict)) is not None:
            by_key.setdefault(key, verdict)
    for key in sorted(by_key.keys() - _known(connection, cluster_id, by_key)):
        verdict = by_key[key]
        rows.verdicts.append((*key, *_verdict(verdict)))
        rows.findings += [(*key, number, *finding) for number, finding in enumerate(_findings(verdict))]
        rows.use += _use(key, verdict.usage)


def _known(connection: Connection, cluster_id: int, keys: Collection[Row]) -> set[Row]:
    """Which of these verdicts of one node are there."""
    column, times = node_verdicts.c, [key[2] for key in keys]
    (node,) = {key[1] for key in keys}
    query = select(*(column[name] for name in _KEY)).where(
        column.cluster_id == cluster_id, column.node == node, column.at_ms.between(min(times), max(times))
    )
    return {tuple(row) for row in connection.execute(query)} & set(keys)


def _key(cluster_id: int, verdict: Verdict) -> Row | None:
    """None: it has a time or a number that no node tells."""
    at_ms = verdict.at * 1000
    if not (_FIRST_MS <= at_ms < _LAST_MS and 0 <= verdict.passed <= LARGEST):  # NaN is not within either
        return None
    return cluster_id, text_of(verdict.node), round(at_ms), verdict.phase.value, words_of(verdict.job_id or "")


def _verdict(verdict: Verdict) -> Row:
    return verdict.decision.value, words_of(verdict.reason), words_of(verdict.boot_id), verdict.passed


def _findings(verdict: Verdict) -> Iterator[Row]:
    for one in verdict.findings:
        code = one.code if one.code is not None and abs(one.code) <= LARGEST else None
        words = (words_of(text) for text in (one.subject, one.part, one.words))
        yield words_of(one.check), one.outcome.value, one.care.name.lower(), *words, code


def _use(key: Row, usage: Mapping[str, object] | None) -> Iterator[Row]:
    """What the job of an epilog used; what the node could not tell is None."""
    cluster_id, node, at_ms, _, job_id = key
    gpus = usage.get("gpus") if usage is not None else None
    used_ms = milliseconds_of(_number(usage.get("seconds"))) if usage is not None else None
    named: dict[str, Row] = {}
    for one in gpus if isinstance(gpus, list) else ():
        if not isinstance(one, dict):
            continue
        pci, uuid = one.get("gpu"), one.get("uuid")
        name = pci if isinstance(pci, str) else uuid
        if isinstance(name, str):
            energy_mj, memory = milliseconds_of(_number(one.get("energy_j"))), one.get("memory_bytes")
            memory_bytes = memory if type(memory) is int and 0 <= memory <= LARGEST else None
            gpu, known_as = words_of(name), words_of(uuid) if isinstance(uuid, str) else ""
            named.setdefault(gpu, (cluster_id, node, at_ms, job_id, gpu, known_as, used_ms, energy_mj, memory_bytes))
    yield from named.values()


def _number(value: object) -> float | None:
    try:
        return float(value) if type(value) in (int, float) else None  # type: ignore[arg-type]
    except OverflowError:
        return None
