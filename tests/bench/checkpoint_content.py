"""The check of a checkpoint's content beside the least that it takes: to read the files once, from the page cache."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.model import Level, entry_of
from fleetctl.checkpoint.storage import LocalStorage
from tests.bench.checkpoint import wall_ms
from tests.bench.measure import Row, alternate
from tests.checkpoints import write_checkpoint

_SIZE_BYTES, _SHARDS = 4 << 30, 16
_BLOCK_BYTES = 1 << 20
_ROUNDS = 9


def rows() -> list[Row]:
    """Times of the wall clock, on all cores there are: xxh3 at least as quick as cat, CRC32 half as quick."""
    return [checked("xxh3", 1.0), checked("crc32", 2.0)]


def checked(digest: str, most: float) -> Row:
    with written(digest) as folder:
        entry = entry_of(folder.name)
        assert entry is not None
        files = sorted(map(str, folder.glob("*.bin")))
        size = f"{sum(map(os.path.getsize, files)) / (1 << 30):.0f} GiB"

        def check() -> None:
            found = examine(LocalStorage(), folder.parent, entry, Level.CONTENT)
            assert found.level is Level.CONTENT, found

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peer, ours = alternate(lambda: wall_ms(lambda: cat(files)), lambda: wall_ms(check), _ROUNDS)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 << 10, f"the check took {grown} KiB of memory"
    return Row(f"content of {size}, {digest}", f"cat FILES >/dev/null, {os.cpu_count()} cores for us", peer, ours, most)


def cat(files: list[str]) -> None:
    subprocess.run(["cat", *files], stdout=subprocess.DEVNULL, check=True)


@contextlib.contextmanager
def written(digest: str) -> Iterator[Path]:
    """A checkpoint in memory; half of that where memory is short."""
    room = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = _SIZE_BYTES if room > 2 * _SIZE_BYTES else _SIZE_BYTES // 2
    directory = Path(tempfile.mkdtemp(prefix="fb-", dir="/dev/shm"))
    try:
        data = os.urandom(_BLOCK_BYTES) * (size // _SHARDS // _BLOCK_BYTES)
        yield write_checkpoint(directory, 1, shards=_SHARDS, digest=digest, data=data)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    from tests.bench.measure import table

    print(table(rows()))
