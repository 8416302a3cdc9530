"""Rules of the house that the linters do not know."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = sorted((ROOT / "fleetctl").rglob("*.py"))
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
PURE = next(contract for contract in CONTRACTS if contract["name"] == "decisions do no I/O")["source_modules"]


def calls(path: Path) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}


@pytest.mark.parametrize("module", PURE)
def test_a_decision_reads_no_file_and_no_clock(module: str) -> None:
    path = ROOT / f"{module.replace('.', '/')}.py"
    assert not {name for name in calls(path) if name in ("open", "print", "input") or name.endswith((".now", ".today"))}


@pytest.mark.parametrize("path", [path for path in SOURCES if path.name == "__init__.py"], ids=str)
def test_package_files_are_empty_since_the_import_linter_does_not_see_into_them(path: Path) -> None:
    assert path.read_text() == ""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 350


def test_every_decision_module_is_under_the_contract() -> None:
    """Modules of these names are pure wherever they are."""
    names = {"decide", "classify", "select", "judge", "usage", "ledger", "parse", "render", "model"}
    found = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in SOURCES if path.stem in names}
    assert found <= set(PURE)


def test_no_shell_is_ever_asked() -> None:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.keyword) and node.arg == "shell"), path
