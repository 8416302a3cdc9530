"""What a training keeps, as bytes and back: arrays, bytes and JSON values under names.

What would come back changed is refused: a tuple, a NumPy scalar in a list, a subclass of float. Nothing is pickled.
NumPy is not imported for saving: who has arrays has it already. Standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

import json
import mmap
import sys
from typing import Any, Callable, List, Mapping, NamedTuple

from fleetctl.train.layout import Part, encode_header, item_bytes

_LARGEST_INT_BITS = 14_000  # Python 3.11 and newer refuse to read or write integers of more than 4300 digits


class RawArray(NamedTuple):
    """An array where NumPy is not installed: C order, `dtype` as NumPy writes it, such as "<f8"."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Arena:
    """One piece of memory, reused from save to save: getting fresh memory costs more than the copy into it.

    It is shared with forked data-loader workers: private memory would be copied page by page at the next save and so
    held twice.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def take(self, size: int) -> memoryview:
        """`size` bytes; what an earlier call gave must not be in use any more. Raises OSError or MemoryError."""
        if self._memory is None or len(self._memory) < size:
            self._memory = None  # given back before the bigger one is asked for
            self._memory = mmap.mmap(-1, max(size, mmap.PAGESIZE))
        return memoryview(self._memory)[:size]


class _Item(NamedTuple):
    kind: str
    dtype: str | None
    shape: tuple[int, ...] | None
    size: int
    data: bytes | None  # what cannot change any more; else `copy` puts it into the memory it is given
    copy: Callable[[memoryview], None] | None = None


def keep(state: Mapping[str, Any], arena: Arena) -> list[bytes | memoryview]:
    """The bytes of a shard file, in order: what could change is copied into the arena, immutable bytes are not.

    Raises TypeError or ValueError, with the name, for what cannot be kept; OSError or MemoryError without memory.
    """
    items = {name: _item(name, value) for name, value in state.items()}
    parts: List[Part] = []
    offset = 0
    for name, item in items.items():
        parts.append(Part(name, item.kind, item.dtype, item.shape, offset, item.size))
        offset += item.size
    pieces: List[bytes | memoryview] = [encode_header(parts)]
    memory = arena.take(sum(item.size for item in items.values() if item.copy))
    done = written = 0  # arena[done:written] is copied and not yet among the pieces
    for item in items.values():
        if item.copy is not None:
            item.copy(memory[written : written + item.size])
            written += item.size
        elif item.data:
            pieces += [memory[done:written], item.data]
            done = written
    pieces.append(memory[done:written])
    return [piece for piece in pieces if len(piece)]


def back(part: Part, data: Any) -> Any:
    """The value of an entry that was read whole and found good; an array's `data` is one already."""
    if part.kind != "json":
        return data
    return json.loads(data.decode("ascii"))


def _item(name: Any, value: Any) -> _Item:
    if type(name) is not str:
        raise TypeError(f"the state's names are text, not {type(name).__name__}: {name!r}")
    _check_text(name, "a name of the state")
    where = f"state[{name!r}]"
    if type(value) is bytes:
        return _Item("bytes", None, None, len(value), value)
    if isinstance(value, (bytearray, memoryview)):
        view = memoryview(value)
        return _Item("bytes", None, None, view.nbytes, *_copying(view))
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _array(where, value)
    try:
        _check_json(where, value)
    except RecursionError:
        raise ValueError(f"{where} is nested too deep, or holds itself") from None
    data = json.dumps(value, separators=(",", ":")).encode("ascii")
    return _Item("json", None, None, len(data), data)


def _copying(view: memoryview) -> tuple[bytes | None, Callable[[memoryview], None] | None]:
    try:
        flat = view.cast("B")
    except (TypeError, ValueError):  # with gaps, or of a format that Python's own views cannot cast
        return view.tobytes(), None

    def copy(target: memoryview) -> None:
        target[:] = flat

    return None, copy


def _array(where: str, value: Any) -> _Item:
    dtype, shape = getattr(value.dtype, "str", None), tuple(value.shape)
    if not isinstance(dtype, str):
        raise TypeError(f"{where} is a {type(value).__name__}: save it as a NumPy array, such as tensor.cpu().numpy()")
    try:
        size = item_bytes(dtype)
    except ValueError:
        remedy = "save each field, or a view as plain numbers such as array.view('uint16')"
        raise TypeError(f"{where} is an array of {value.dtype}, which cannot be kept as it is: {remedy}") from None
    for length in shape:
        size *= int(length)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return _Item("array", dtype, shape, size, *_copying_numpy(where, value, numpy))
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(
            f"{where} is a {type(value).__name__} whose memory cannot be read: save numpy.asarray(it)"
        ) from None
    if view.nbytes != size:
        raise TypeError(f"{where} has {view.nbytes} bytes, not the {size} of its shape {shape} and dtype {dtype}")
    return _Item("array", dtype, shape, size, view.tobytes())


def _copying_numpy(where: str, value: Any, numpy: Any) -> tuple[bytes | None, Callable[[memoryview], None] | None]:
    if isinstance(value, numpy.generic):
        raise TypeError(f"{where} is a NumPy scalar: save numpy.asarray(it), or it.item() as a number")
    if type(value) not in (numpy.ndarray, numpy.memmap):
        raise TypeError(f"{where} is a {type(value).__name__}, which would come back as a plain array: save its parts")
    if value.nbytes == 0:
        return b"", None
    plain = value.view(numpy.ndarray)

    def copy(target: memoryview) -> None:
        if plain.flags.c_contiguous:  # as bytes: also where the target is not aligned, one plain copy
            numpy.copyto(numpy.frombuffer(target, "u1"), plain.reshape(-1).view("u1"))
        else:
            numpy.copyto(numpy.ndarray(plain.shape, plain.dtype, target), plain)

    return None, copy


def _check_json(where: str, value: Any) -> None:
    kind = type(value)
    if value is None or kind in (bool, float):
        return
    if kind is int:
        if value.bit_length() > _LARGEST_INT_BITS:
            raise ValueError(f"{where} is an integer of more than {_LARGEST_INT_BITS} bits: save it as bytes")
    elif kind is str:
        _check_text(value, where)
    elif kind is list:
        for index, item in enumerate(value):
            _check_json(f"{where}[{index}]", item)
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError(f"{where} has the key {key!r}: JSON would turn it into text; use text keys")
            _check_text(key, f"a key of {where}")
            _check_json(f"{where}[{key!r}]", item)
    else:
        raise TypeError(f"{where} is a {kind.__name__}, which would not come back the same: {_remedy(value)}")


def _check_text(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{where} is text that is not Unicode (a lone surrogate): save it as bytes") from None


def _remedy(value: Any) -> str:
    if isinstance(value, tuple):
        return "save it as list(value)"
    if hasattr(value, "dtype") or isinstance(value, (bytes, bytearray, memoryview)):
        return "arrays and bytes stand at the top of the state, under a name of their own"
    return "save numbers, text, lists and dicts of them, bytes, or NumPy arrays"
