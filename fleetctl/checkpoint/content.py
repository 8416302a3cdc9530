"""Read what a digest was written down for, and compare. In threads: reading and digests let go of the interpreter."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from msgspec import Struct

from fleetctl.checkpoint.format import Unit
from fleetctl.checkpoint.look import Look
from fleetctl.checkpoint.storage import Blob
from fleetctl.checkpoint.verified import Notes
from fleetctl.train.digests import Digest, DigestMissing, parse_digest

# Few enough hand-overs of the interpreter between threads, small enough to stay in the cache between the copy and the
# digest: of 64 KiB to 8 MiB the quickest with tests/bench/checkpoint_content.py; 64 KiB takes twice as long.
_CHUNK_BYTES = 1 << 20
_MOST_WORKERS = 8  # more readers make a parallel file system no quicker for its other users
_AHEAD = 4  # batches in hand for each worker: a checkpoint of a million pieces is not held in memory
# Of small pieces of one file that one worker takes at once: to hand over one alone costs more than to check it
_BATCH_BYTES = 32 << 20
_BATCH_UNITS = 1024


class _Fault(Struct, frozen=True):
    """One unit that is not as written, or that could not be read."""

    unit: Unit
    error: ValueError | OSError


def check_content(look: Look, units: Iterable[Unit], notes: Notes) -> str:
    """Tell the look each unit that is not as written. Returns why some could not be checked at all, "" if all were.

    What the `notes` know is not read again, and they are told what was read and found right.

    :raises OSError: what yields the units could not read on.
    """
    unchecked = ""
    for fault in _faults(look, units, notes):
        with look.judging("/".join(fault.unit.file)):
            try:
                raise fault.error
            except DigestMissing as missing:
                unchecked = f"{missing}: the content was not checked"
    return unchecked


def _faults(look: Look, units: Iterable[Unit], notes: Notes) -> Iterator[_Fault]:
    """As they are found; at most so many batches are in hand."""
    workers = max(1, min(_MOST_WORKERS, len(os.sched_getaffinity(0))))
    hands = [_Hand(look, notes) for _ in range(workers)]
    free, running = list(hands), set[Future[list[_Fault]]]()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for batch in _batches(units):
                if len(running) >= workers * _AHEAD:
                    ended, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from _all(ended)
                running.add(pool.submit(_work, free, batch))
            yield from _all(wait(running).done)
        finally:  # also when the caller was interrupted: a unit may have terabytes
            for hand in hands:
                hand.stop()
            pool.shutdown(cancel_futures=True)
            for hand in hands:
                hand.close()


def _all(ended: Iterable[Future[list[_Fault]]]) -> Iterator[_Fault]:
    for one in ended:
        yield from one.result()


def _batches(units: Iterable[Unit]) -> Iterator[list[Unit]]:
    """Units that follow each other in one file, together."""
    batch, size_bytes = list[Unit](), 0
    for unit in units:
        if batch and unit.file != batch[-1].file:
            yield batch
            batch, size_bytes = [], 0
        batch.append(unit)
        size_bytes += unit.size_bytes
        if size_bytes >= _BATCH_BYTES or len(batch) >= _BATCH_UNITS:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _work(free: list[_Hand], batch: list[Unit]) -> list[_Fault]:
    hand = free.pop()  # there are as many as threads; pop and append are each one step for the interpreter
    try:
        return hand.check(batch)
    finally:
        free.append(hand)


class _Hand:
    """What one worker has: a buffer, and the file that it read last, still open."""

    def __init__(self, look: Look, notes: Notes) -> None:
        self._look, self._notes = look, notes
        self._buffer = memoryview(bytearray(_CHUNK_BYTES))
        self._file: tuple[str, ...] = ()
        self._blob: Blob | None = None
        self._opened = contextlib.ExitStack()
        self._stopped = False

    def stop(self) -> None:
        """Read no more: nobody waits for the answer."""
        self._stopped = True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._opened.close()
        self._blob = None

    def check(self, batch: list[Unit]) -> list[_Fault]:
        """Those that are not as written."""
        try:
            blob = self._open(batch[0].file)
        except OSError as error:
            return [_Fault(batch[0], error)]
        if self._notes.has(blob.stamp, batch):
            return []
        faults = []
        for unit in batch:
            try:
                self._check(blob, unit)
            except (ValueError, OSError) as error:
                faults.append(_Fault(unit, error))
        if not faults and not self._stopped:
            self._notes.add(blob.stamp, batch)
        return faults

    def _open(self, file: tuple[str, ...]) -> Blob:
        if self._blob is None or self._file != file:
            self.close()
            self._blob, self._file = self._opened.enter_context(self._look.open("/".join(file))), file
        return self._blob

    def _check(self, blob: Blob, unit: Unit) -> None:
        """:raises ValueError: it is not as written. :raises OSError: it cannot be read now."""
        digest = Digest(parse_digest(unit.digest)[0])
        what = f": {unit.piece} " if unit.piece else ""
        offset, end = unit.offset, unit.offset + unit.size_bytes
        while offset < end and not self._stopped:
            wanted = self._buffer[: end - offset]
            count = blob.read_into(wanted, offset)
            digest.update(wanted[:count])
            offset += count
            if count < len(wanted):
                raise ValueError(f"{what}ends at byte {offset}")
        if digest.text() != unit.digest and not self._stopped:
            raise ValueError(f"{what}has another content than was written")
