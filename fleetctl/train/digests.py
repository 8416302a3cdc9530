"""Digests of checkpoint files, as text: "crc32:1a2b3c4d". Standard library only, Python 3.8 and newer."""

from __future__ import annotations

import hashlib
import importlib
import zlib
from typing import Any

_HEX_DIGITS = {"crc32": 8, "sha256": 64, "xxh3": 16}  # xxh3 is xxh3_64 of the package xxhash
KINDS = tuple(_HEX_DIGITS)


class DigestMissing(ValueError):
    """This Python cannot compute a digest that is well known."""


class Digest:
    """A digest that grows. `update` lets other threads run while it works on a big buffer."""

    def __init__(self, kind: str) -> None:
        """`kind` is one of KINDS. Raises ValueError, or DigestMissing if it is xxh3 and xxhash is not installed."""
        self._kind, self._crc = kind, 0
        self._hash = None if kind == "crc32" else _hash_of(kind)

    def update(self, data: bytes | memoryview) -> None:
        if self._hash is None:
            self._crc = zlib.crc32(data, self._crc)
        else:
            self._hash.update(data)

    def text(self) -> str:
        """What is stored: the kind and the value in lower-case hexadecimal digits."""
        return f"{self._kind}:{self._crc:08x}" if self._hash is None else f"{self._kind}:{self._hash.hexdigest()}"


def digest_of(kind: str, data: bytes) -> str:
    """The digest of bytes in hand."""
    digest = Digest(kind)
    digest.update(data)
    return digest.text()


def parse_digest(text: str) -> tuple[str, str]:
    """Kind and hexadecimal value of a stored digest. Raises ValueError."""
    kind, _, value = text.partition(":")
    if kind not in _HEX_DIGITS or len(value) != _HEX_DIGITS[kind] or not set(value) <= set("0123456789abcdef"):
        raise ValueError(f"{text[:80]!r} is no digest like crc32:1a2b3c4d")
    return kind, value


def _hash_of(kind: str) -> Any:
    if kind == "sha256":
        return hashlib.sha256()
    if kind != "xxh3":
        raise ValueError(f"the digest {kind!r} is unknown: take one of {', '.join(KINDS)}")
    try:
        xxhash: Any = importlib.import_module("xxhash")
    except ImportError as error:
        raise DigestMissing("xxhash is not installed") from error
    return xxhash.xxh3_64()
