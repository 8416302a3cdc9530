"""Asks a stand-in library through the real nvidia-ml-py, in a fresh process: pynvml keeps what it loaded for ever."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.nvml.scenario import Paths

_BEGINNING = """
import ctypes, json, signal, sys
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
import pynvml as n
def answer(call, *arguments):
    try:
        return call(*arguments)
    except n.NVMLError as error:
        return f"code {error.value}"
def handle(index):
    return n.nvmlDeviceGetHandleByIndex(index)
def field(gpu, wanted):
    value, = n.nvmlDeviceGetFieldValues(gpu, [wanted])
    kinds = {1: value.value.uiVal, 3: value.value.ullVal}
    return f"code {value.nvmlReturn}" if value.nvmlReturn else kinds[value.valueType]
def say(value):
    print(json.dumps(value))
"""


def program(paths: Paths, text: str) -> list[str]:
    """The command of a process that runs `text` with `answer`, `handle`, `field`, `say` and `n`, which is pynvml."""
    return [sys.executable, "-c", _BEGINNING + text, str(paths.library)]


def ask(paths: Paths, text: str) -> Any:
    """What `text` said."""
    done = subprocess.run(program(paths, text), capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)
