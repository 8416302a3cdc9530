"""Rewrites a pickle before anything runs it, so that running it can neither hang, nor crash, nor take absurd memory.

Three things make pickles dangerous even where no class is ever imported:

* a length or a memo index that is a lie: CPython allocates what it says;
* a dict key made of nested tuples: its hash recurses without a bound (200,000 levels crash the process), and tuples
  that share their parts take time 2**levels;
* opcodes of protocols 0 and 1, extension codes and out-of-band buffers, that torch never writes.

So all opcodes are walked once, by regular expressions that run in C. Lengths are compared with the end of the data,
and what makes or fills a dict or a set is rewritten into what makes and fills flat lists, which hash nothing.
`fleetctl.checkpoint.inert` runs the result. Opcodes: the module pickletools of CPython.
"""

from __future__ import annotations

import functools
import re

from fleetctl.checkpoint.look import Unjudged

MOST_BYTES = 256 << 20  # of one pickle; DCP metadata of a million slices has about 200 MiB
# Opcodes that make an object of 50 to 100 bytes, mostly of one byte: lists, tuples, dicts, sets, stubs. One in four
# bytes is what a pickle of protocol 4 with nothing but small tuples has; DCP metadata has one in nine.
_MAKING, _FREE_OBJECTS, _BYTES_EACH = b"]}t\x85\x86\x87\x8f\x91QR\x81\x92", 100_000, 4
_MEMO_ENTRY_BYTES = 6  # LONG_BINPUT and the opcode whose value it keeps: a higher index has no use
_PUTS_WITH_ONE_BYTE = 256
_STOP, _FRAME, _FRAME_BYTES = ord("."), 0x95, 9

# Values for `persistent_load` of inert.py; torch's own are tuples of strings and numbers
_NEW_MAP = b"NQ"  # of None: an empty dict
_PUT_PAIR = b"\x86N\x86Qb"  # of ((key, value), None), and BUILD: one item goes into the dict below
_NEW_WITH_NAMES = b"\x87N\x86Q"  # of ((class, arguments, named arguments), None): an object
_REWRITTEN = {
    b"}": _NEW_MAP,
    b"u": b"e",  # SETITEMS -> APPENDS
    b"s": _PUT_PAIR,
    b"\x8f": b"]",  # EMPTY_SET -> EMPTY_LIST
    b"\x90": b"e",  # ADDITEMS -> APPENDS
    b"\x91": b"l",  # FROZENSET -> LIST
    b"\x81": b"R",  # NEWOBJ with arguments -> REDUCE: the class is called with them
    b"\x92": _NEW_WITH_NAMES,
}
# Opcodes whose length takes so many bytes; it is read by the regular expression where it is below _SHORT_BYTES
_LENGTH_BYTES = {0x8A: 1, 0x8C: 1, ord("C"): 1, ord("U"): 1, ord("X"): 4, ord("B"): 4, ord("T"): 4, 0x8D: 8, 0x8E: 8}
_SHORT_BYTES = 128  # longer names are rare, and each length is one branch to be compiled
# Known to pickletools, and written by no torch: text, instances, extensions, numbers of more than 255 bytes, buffers
_REFUSED = frozenset(b"SFILVPidgplo2\x82\x83\x84\x8b\x96\x97\x98")


def rewrite(raw: bytes, start: int = 0) -> tuple[bytes, int]:
    """The pickle that begins at `start`, rewritten, and where it ends.

    :raises ValueError: it is broken. :raises Unjudged: it is too large, or has opcodes that torch never writes.
    """
    bits = ((len(raw) - start) // _MEMO_ENTRY_BYTES + _PUTS_WITH_ONE_BYTE).bit_length()
    one_run, tokens = _run(bits), _tokens(bits)
    out, at, quick_to = list[bytes](), start, start
    left = (len(raw) - start) // _BYTES_EACH + _FREE_OBJECTS
    in_vain = False  # once, or a thousand frames that lie about their size take for ever
    while True:
        if at < quick_to and not in_vain:
            count = _objects(raw, at, quick_to, left)
            found = tokens.findall(raw, at, quick_to)
            if sum(map(len, found)) == quick_to - at:
                out.extend(map(_REWRITTEN.get, found, found))
                at, left = quick_to, left - count
                continue
            in_vain = True
        run = one_run.match(raw, at)
        end = run.end() if run else at
        left -= _objects(raw, at, end, left)  # before a list of them is made
        found = tokens.findall(raw, at, end)
        out.extend(map(_REWRITTEN.get, found, found))
        at = _after(raw, end)
        _check_size(at - start)
        if raw[end] == _FRAME:  # it has no meaning, and its size would be wrong in what comes out
            quick_to = min(at + int.from_bytes(raw[end + 1 : at], "little"), len(raw))
        else:
            out.append(raw[end:at])
        if raw[end] == _STOP:
            return b"".join(out), at


def _after(raw: bytes, at: int) -> int:
    """Where the opcode at `at`, which is none of a run, ends."""
    code = raw[at] if at < len(raw) else None
    if code is None:
        raise ValueError("ends within its pickle")
    if code == _STOP:
        return at + 1
    if code == _FRAME:
        return _inside(raw, at + _FRAME_BYTES)
    if (size := _LENGTH_BYTES.get(code)) is not None:
        length = int.from_bytes(raw[at + 1 : at + 1 + size], "little")
        return _inside(raw, at + 1 + size + length)
    if code in _REFUSED:
        raise Unjudged(f"has a pickle of a kind that torch never writes (opcode {bytes([code])!r})")
    raise ValueError(f"has a broken pickle, at byte {at}")


def _inside(raw: bytes, end: int) -> int:
    if end > len(raw):
        raise ValueError("ends within its pickle")
    return end


def _check_size(size_bytes: int) -> None:
    if size_bytes > MOST_BYTES:
        raise Unjudged(f"has a pickle of more than the {MOST_BYTES} bytes that are looked at")


def _objects(raw: bytes, at: int, end: int, most: int) -> int:
    """How many objects these opcodes make. Short strings count as opcodes; longer ones lie between two runs."""
    run = raw[at:end]
    count = len(run) - len(run.translate(None, _MAKING))
    if count > most:
        raise Unjudged("has a pickle of too many lists, dicts and objects for its size")
    return count


@functools.cache
def _run(bits: int) -> re.Pattern[bytes]:
    return re.compile(b"(?:" + _plain(bits) + b"|" + _SPECIAL + b")*+", re.DOTALL)


@functools.cache
def _tokens(bits: int) -> re.Pattern[bytes]:
    """Runs of opcodes that stay, and single ones to be rewritten."""
    return re.compile(b"(?:" + _plain(bits) + b")++|" + _SPECIAL, re.DOTALL)


_SPECIAL = rb"[}us\x81\x8f-\x92]"


def _plain(bits: int) -> bytes:
    """One opcode with its argument. No index of LONG_BINPUT has more than `bits` bits."""
    top, shift = (bits - 1) // 8, (bits - 1) % 8
    most = re.escape(bytes([(2 << shift) - 1]))
    index = b"." * top + b"[\0-" + most + b"]" + rb"\0" * (3 - top)
    return b"|".join(
        [
            rb"\)\x81",  # an object without arguments
            rb"[()01NQRabet\]\x85-\x89\x93\x94]++",
            rb"[hKq\x80].",
            rb"j....",
            rb"M..",
            rb"J....",
            b"r" + index,
            rb"G.{8}",
            rb"c[^\n]{1,200}\n[^\n]{1,200}\n",
            rb"[\x8cCU\x8a]" + _counted(b""),
            rb"[XBT]" + _counted(rb"\0\0\0"),
        ]
    )


def _counted(zeros: bytes) -> bytes:
    """A short length, the zeros of its other bytes, and so many bytes."""
    return b"(?:" + b"|".join(re.escape(bytes([n])) + zeros + b".{%d}" % n for n in range(_SHORT_BYTES)) + b")"
