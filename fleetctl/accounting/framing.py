"""Texts of Slurm as a database can hold them, and rows as one number."""

from __future__ import annotations

import re
from hashlib import blake2b

# PostgreSQL takes no NUL and neither database a lone surrogate, which is how a byte that is no UTF-8 was read. The
# other control characters (but tab and newline) would be commands to a terminal.
_FOREIGN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_BYTES = range(0xDC80, 0xDD00)  # PEP 383: the byte 0x80 is U+DC80


def text_of(raw: str) -> str:
    r"""`raw` with surrogates, NUL and control characters written as `\xNN`; the digest of the raw row tells apart
    what looks alike afterwards."""
    return raw if raw.isprintable() else _FOREIGN.sub(_written, raw)


def _written(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code in _BYTES:
        code -= _BYTES.start - 0x80
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def digest_of(fields: tuple[str, ...]) -> int:
    """A signed 64-bit number of this row. Slurm prints C strings, so no field has the NUL that joins them."""
    data = "\0".join(fields).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big", signed=True)
