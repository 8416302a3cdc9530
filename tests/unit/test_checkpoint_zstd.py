"""Zstandard frames, whole and broken: what unpacks is bounded, and nothing but ValueError is raised."""

from __future__ import annotations

import contextlib
import random
import tracemalloc

import pytest
import zstandard

from fleetctl.checkpoint import zstd

TEXTS = (
    b"",
    b"x",
    bytes(200_000),
    b"".join(b"layer_%d.w/.zarray" % i for i in range(500)),
    random.Random(1).randbytes(3000),
)
MANY = 1 << 20


@pytest.mark.parametrize("level", [1, 19])
@pytest.mark.parametrize("text", TEXTS, ids=len)
def test_what_was_packed_and_every_cut(text: bytes, level: int) -> None:
    raw = zstandard.ZstdCompressor(level=level).compress(text)
    assert zstd.unpack(raw, MANY) == text
    for size in range(1, len(raw), max(1, len(raw) // 200)):
        with pytest.raises(ValueError, match="Zstandard"):
            zstd.unpack(raw[:size], MANY)


def test_frames_one_behind_the_other() -> None:
    frames = [zstandard.ZstdCompressor(write_content_size=size).compress(b"abc" * 1000) for size in (True, False)]
    assert zstd.unpack(b"".join(frames), MANY) == b"abc" * 2000
    assert zstd.unpack(b"", MANY) == b""
    with pytest.raises(ValueError, match="Zstandard"):
        zstd.unpack(frames[0] + b"junk", MANY)


def test_what_unpacks_to_too_much_takes_no_memory() -> None:
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 30))
    tracemalloc.start()
    with pytest.raises(zstd.TooLarge):
        zstd.unpack(bomb, MANY)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("seed", range(4))
def test_nothing_else_is_raised(seed: int) -> None:
    chance = random.Random(seed)
    frames = [zstandard.ZstdCompressor().compress(text) for text in TEXTS[3:]]
    for _ in range(300):
        raw = bytearray(chance.choice(frames))
        for _ in range(chance.randrange(1, 5)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        with contextlib.suppress(ValueError):
            assert len(zstd.unpack(bytes(raw), MANY)) <= MANY
