"""The module that nodes get of nvidia-ml-py: what the checks ask for, as it was, and nothing else."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import types
from pathlib import Path

import pytest

import fleetctl.health
from fleetctl.ops.bundle import make_bundle
from fleetctl.ops.cut import cut, names_in

CHECKS = Path(fleetctl.health.__file__).parent
MODULE = '''\
# A licence

"""Words."""
import sys  # of all
from functools import wraps

ONE = 1
TWO = ONE + 1  # two
LEFT = RIGHT = 4
UNUSED = 5

def helper():
    return TWO

@wraps(helper)
@staticmethod
def wanted(argument=LEFT):
    # inside
    return helper()

class Unused:
    pass

def unused():
    return UNUSED

if sys:
    ONE = 7
'''


def test_what_is_wanted_stays_line_by_line_with_all_that_it_names() -> None:
    gone = ("UNUSED", "Unused", "unused", "pass")
    stays = [line for line in MODULE.splitlines() if line.strip() and not any(word in line for word in gone)]
    assert [line for line in cut(MODULE, ["wanted", "nothing"]).splitlines() if line.strip()] == stays


def test_what_nobody_wants_goes_and_what_is_no_definition_stays() -> None:
    kept = cut(MODULE, [])
    assert "wanted" not in kept
    assert "TWO" not in kept
    assert kept.startswith("# A licence\n")
    assert "if sys:\n    ONE = 7\n" in kept


def test_texts_and_attributes_are_what_a_module_may_ask_for() -> None:
    assert names_in("import x\nx.one()\ngetattr(x, 'two')\nthree = 3") == {"one", "two"}


@pytest.fixture(scope="module")
def on_nodes() -> str:
    return {path: content for path, _, content in make_bundle("/usr/bin/python3").files}["pynvml.py"].decode()


def loaded(source: str) -> types.ModuleType:
    module = types.ModuleType("pynvml_on_nodes")
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, "pynvml.py", "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return module


def installed() -> str:
    found = importlib.util.find_spec("pynvml")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).read_text()


def test_nodes_get_all_that_the_checks_ask_for_and_little_else(on_nodes: str) -> None:
    whole, here = loaded(installed()), loaded(on_nodes)
    asked = set().union(*(names_in(path.read_text()) for path in CHECKS.glob("nvml*.py")))
    for name in sorted(asked & vars(whole).keys() - {"sys", "os"}):
        kept, real = getattr(here, name), getattr(whole, name)
        assert type(kept) is type(real), name
        if isinstance(kept, type) and issubclass(kept, ctypes.Structure):
            assert ctypes.sizeof(kept) == ctypes.sizeof(real)
            assert [field[0] for field in kept._fields_] == [field[0] for field in real._fields_]
    assert {"nvmlInit", "nvmlDeviceGetFieldValues", "NVMLError", "c_nvmlGpuFabricInfo_v3_t"} <= vars(here).keys()
    assert len(on_nodes) < len(installed()) / 5


def test_its_licence_goes_along(on_nodes: str) -> None:
    licence, _, _ = installed().partition("from ctypes import")
    assert "Redistribution" in licence
    assert on_nodes.startswith(licence.rstrip()[:1000])
