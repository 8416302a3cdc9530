"""Unpack Zstandard frames, bounded: the small tables inside checkpoints, not their data."""

from __future__ import annotations

_MOST_WINDOW_BYTES = 8 << 20  # what every decoder must accept (RFC 8878, 3.1.1.1.2); a frame may ask for terabytes
_PIECE_BYTES = 256  # four bytes can become 128 KiB: so many become 8 MiB at most before they are counted


class TooLarge(ValueError):
    """It unpacks to more than is looked at."""


def unpack(raw: bytes, most_bytes: int) -> bytes:
    """All frames in `raw`, one behind the other.

    :raises TooLarge: they unpack to more than `most_bytes`. :raises ValueError: they are broken.
    """
    import zstandard  # 25 ms: only for a checkpoint of Orbax

    factory = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW_BYTES)
    out, at = bytearray(), 0
    machine = None
    try:
        while at < len(raw):
            machine = factory.decompressobj() if machine is None or machine.eof else machine
            piece = raw[at : at + _PIECE_BYTES]
            out += machine.decompress(piece)
            at += len(piece) - len(machine.unused_data)
            if len(out) > most_bytes:
                raise TooLarge(f"unpacks to more than {most_bytes} bytes")
    except zstandard.ZstdError as error:
        raise ValueError(f"is no Zstandard ({error})") from None
    if machine is not None and not machine.eof:
        raise ValueError("ends within its Zstandard frame")
    return bytes(out)
