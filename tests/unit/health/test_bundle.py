"""What a node gets."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys

import pytest

from fleetctl.errors import InstallError
from fleetctl.ops.bundle import Bundle, make_bundle
from fleetctl.ops.far_side import unpack

PYTHON = "/usr/bin/python3"
FILES = {path: (mode, content) for path, mode, content in make_bundle(PYTHON, b"{}", b"[]").files}
CODE = {path: content for path, (_, content) in FILES.items() if path.endswith(".py")}


def test_the_same_sources_give_the_same_digest_and_bytes() -> None:
    one, two = make_bundle(PYTHON, b"{}"), make_bundle(PYTHON, b"{}")
    assert (one.digest, one.packed) == (two.digest, two.packed)


@pytest.mark.parametrize(
    "other",
    [
        make_bundle(PYTHON),
        make_bundle(PYTHON, b"{ }"),
        make_bundle(PYTHON, b"{}", b""),
        make_bundle("/usr/bin/py", b"{}"),
    ],
)
def test_whatever_differs_makes_another_release(other: Bundle) -> None:
    assert make_bundle(PYTHON, b"{}").digest != other.digest


def test_it_travels_unharmed() -> None:
    one = make_bundle(PYTHON, b"\xff\x00", None)
    assert sorted(unpack(one.packed)) == sorted(one.files)


def test_only_what_nodes_need_is_in_it() -> None:
    tops = {path.split("/")[0] for path in FILES}
    assert tops == {"__main__.py", "epilog", "fleetctl", "prolog", "profile.json", "pynvml.py", "python", "site.json"}
    assert {path.split("/")[1] for path in FILES if path.startswith("fleetctl/")} == {
        "__init__.py",
        "version.py",
        "health",
    }
    assert not [path for path in FILES if "__pycache__" in path or path.endswith((".pyc", ".md"))]
    assert FILES["python"][1] == b"/usr/bin/python3\n"


@pytest.mark.parametrize("phase", ["prolog", "periodic", "boot", "epilog"])
def test_the_scripts_can_be_run(phase: str) -> None:
    mode, text = FILES[f"{'epilog' if phase == 'epilog' else 'prolog'}/fleetctl-{phase}.sh"]
    assert mode == 0o755
    assert text.startswith(b"#!/bin/sh\n")


def test_all_else_is_only_read() -> None:
    assert {mode for path, (mode, _) in FILES.items() if not path.endswith(".sh")} == {0o644}


def test_nothing_in_it_imports_what_is_not_in_it() -> None:
    """The standard library and itself: a node has no other packages, since the interpreter runs with -S."""
    named = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in CODE}
    assert "fleetctl.health.model" in named
    for path, content in CODE.items():
        for node in ast.walk(ast.parse(content)):
            wanted = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, path
                whole = {f"{node.module}.{one.name}" for one in node.names}
                wanted = [str(node.module), *(whole & named)]
            for name in wanted:
                assert name.split(".")[0] in sys.stdlib_module_names or name in named or name == "fleetctl.health", (
                    path,
                    name,
                )


def test_its_tables_are_json() -> None:
    tables = [path for path in FILES if path.startswith("fleetctl/") and path.endswith(".json")]
    assert tables
    for path in tables:
        json.loads(FILES[path][1])


def test_what_people_write_is_shown_in_a_diff() -> None:
    assert set(make_bundle(PYTHON, b"{}", b"{}").wanted.texts) == {"python", "site.json", "profile.json"}


def test_without_nvidias_module_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InstallError, match="nvidia-ml-py is not installed here") as caught:
        make_bundle(PYTHON)
    assert caught.value.remedy == "pip install nvidia-ml-py"
