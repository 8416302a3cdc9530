"""Asks NVML one thing at a time: a code in place of an exception, and every call counted. For the NVML child only."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Dict, Optional, Set

from fleetctl.health.model import Read
from fleetctl.health.nvml_fields import FUNCTION_NOT_FOUND, NO_DATA

INSUFFICIENT_SIZE = 7
LIBRARY_NOT_FOUND = 12
GPU_IS_LOST = 15


class NvmlRefused(Exception):
    """NVML could not be opened. `code` is its nvmlReturn, 0 where nvidia-ml-py itself is missing."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class Nvidia:
    """NVML, opened. `refused` holds the struct versions that this driver has shown not to know."""

    def __init__(self, pynvml: Any) -> None:
        self.pynvml = pynvml
        self.calls = 0
        self.refused: Set[str] = set()

    def ask(self, name: str, *arguments: Any) -> Read:
        """The answer of nvidia-ml-py's function `name`."""
        function = getattr(self.pynvml, name, None)
        if function is None:  # an older nvidia-ml-py
            return Read(None, FUNCTION_NOT_FOUND)
        self.calls += 1
        try:
            return Read(function(*arguments))
        except self.pynvml.NVMLError as error:
            self.calls -= error.value == FUNCTION_NOT_FOUND  # the library was not reached
            return Read(None, int(error.value))
        except UnicodeDecodeError as error:  # the wrapper decodes strictly, and a sick board writes what it likes
            return Read(error.object.decode("utf-8", "replace"))
        except Exception as error:  # noqa: BLE001 - the wrapper's trouble with one answer must not cost all others
            # Some of its functions raise this, which is no NVMLError, in place of FUNCTION_NOT_FOUND.
            if isinstance(error, getattr(self.pynvml, "NVMLLibraryMismatchError", ())):
                self.calls -= 1
                return Read(None, FUNCTION_NOT_FOUND)
            return Read(None, NO_DATA)


class Device:
    """One GPU by its handle. A lost one is asked nothing more: any call to it may be the one that hangs.

    `most`: so many calls may it cost, that for its handle among them; None: as many as there are questions.
    """

    def __init__(self, nvidia: Nvidia, handle: Any, most: Optional[int] = None) -> None:
        self.nvidia = nvidia
        self.handle = handle
        self.lost = False
        self._end = None if most is None else nvidia.calls - 1 + most

    def has_room(self, calls: int) -> bool:
        """Whether it may cost so many calls more."""
        return self._end is None or self.nvidia.calls + calls <= self._end

    def ask(self, name: str, *arguments: Any) -> Read:
        """The answer of `name` about this GPU."""
        if self.lost:
            return Read(None, GPU_IS_LOST)
        read = self.nvidia.ask(name, self.handle, *arguments)
        self.lost = read.code == GPU_IS_LOST
        return read


def open_nvml(library: Optional[str]) -> Nvidia:
    """Loads and initialises NVML; `library`: this one, whatever the loader would find. Raises NvmlRefused."""
    pynvml = _import_pynvml()
    if library is not None:
        try:
            # It has the SONAME that nvidia-ml-py asks for next, and the loader hands out what is there already.
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise NvmlRefused(LIBRARY_NOT_FOUND, str(error)) from None
    nvidia = Nvidia(pynvml)
    nvidia.calls += 1
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlRefused(int(error.value), str(error)) from None
    return nvidia


def _import_pynvml() -> Any:
    """nvidia-ml-py without `ctypes.util`, of which it imports one name and uses none.

    That module brings subprocess, shutil, tempfile, random and the compressors: a third of the import's CPU.
    """
    modules: Dict[str, Any] = sys.modules
    stub = None
    if "ctypes.util" not in modules:
        stub = modules["ctypes.util"] = type(sys)("ctypes.util")
        stub.__dict__["find_library"] = None
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError as error:
        raise NvmlRefused(0, f"nvidia-ml-py cannot be imported: {error}") from None
    finally:
        if stub is not None:
            del modules["ctypes.util"]
    return pynvml
