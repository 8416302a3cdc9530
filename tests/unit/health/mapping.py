"""A file that is mapped and not open: Python's own mmap keeps a descriptor beside it."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BYTES = 4096


@contextmanager
def only_mapped(path: Path) -> Iterator[None]:
    """Map the first page of the file for reading, without a descriptor of it."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    handle = os.open(path, os.O_RDONLY)
    address = libc.mmap(None, _BYTES, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
    os.close(handle)
    assert address not in (None, ctypes.c_void_p(-1).value)
    try:
        yield
    finally:
        libc.munmap(address, _BYTES)
