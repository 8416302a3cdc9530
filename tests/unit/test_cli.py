"""The command line without a cluster: help, errors as one line with a code, and dry runs that touch nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import click
import pytest

from fleetctl import errors
from fleetctl.cli import account, app, output
from fleetctl.cli.app import run


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETCTL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "train.yaml"
    path.write_text("name: demo\ncommand: python train.py\n")
    return path


Capture = pytest.CaptureFixture[str]


def test_help_names_every_command(capsys: Capture) -> None:
    assert run(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in app._COMMANDS)


def test_a_group_names_its_commands_without_importing_one(capsys: Capture) -> None:
    assert run(["account", "--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in account._COMMANDS)
    assert run(["account", "usge"]) == 2
    assert "did you mean usage?" in capsys.readouterr().err


def test_a_misspelt_command_is_guessed(capsys: Capture) -> None:
    assert run(["submitt", "x"]) == 2
    assert "did you mean submit?" in capsys.readouterr().err


def test_a_dry_run_needs_no_slurm_and_makes_no_run(spec: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(["submit", str(spec), "--dry-run", "--set", "resources.nodes=3"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("#!/bin/bash\n")
    assert "#SBATCH --nodes=3\n" in printed
    assert f'#SBATCH --chdir="{tmp_path}"\n' in printed
    assert not (tmp_path / "runs").exists()


def test_every_problem_of_a_spec_is_a_line(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("nam: demo\nresources: {nodes: none, tim: 1}\ncommand: x\n")
    assert run(["submit", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4, lines
    assert all(line.startswith(f"{path}:") for line in lines)


@pytest.mark.parametrize(
    "text", [b"name: [\n", b"\xff\xfe\x00", b"", b"a: 1\na: 2\n", b"!!python/object:os.system {}\n", b"- x\n"]
)
def test_what_is_no_spec_is_refused(tmp_path: Path, capsys: Capture, text: bytes) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(text)
    assert run(["submit", str(path), "--dry-run"]) == 2
    assert all(line.startswith(str(path)) for line in capsys.readouterr().err.splitlines())


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, capsys: Capture) -> None:
    assert run(["submit", str(tmp_path / "missing.yaml")]) == 2
    assert capsys.readouterr().err == f"fleetctl: {tmp_path}/missing.yaml: No such file or directory\n"
    assert run(["submit", str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err


def test_an_undefined_name_in_a_users_template_is_named(spec: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sbatch.sh.j2").write_text("#!/bin/bash\n{{ nobody }}\n")
    assert run(["submit", str(spec), "--dry-run", "--templates", str(tmp_path / "mine")]) == 2
    assert "'nobody' is undefined" in capsys.readouterr().err
    (tmp_path / "mine" / "sbatch.sh.j2").write_text("#!/bin/bash\n{% if %}\n")
    assert run(["submit", str(spec), "--dry-run", "--templates", str(tmp_path / "mine")]) == 2
    assert "sbatch.sh.j2:2: " in capsys.readouterr().err


def test_a_template_cannot_reach_into_python(spec: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sbatch.sh.j2").write_text("{{ run_id.__class__.__mro__ }}\n")
    assert run(["submit", str(spec), "--dry-run", "--templates", str(tmp_path / "mine")]) == 2
    assert "unsafe" in capsys.readouterr().err


def test_a_users_template_comes_first(spec: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / ".config" / "fleetctl" / "templates"
    folder.mkdir(parents=True)
    (folder / "sbatch.sh.j2").write_text("mine: {{ run_id }}\n")
    assert run(["submit", str(spec), "--dry-run"]) == 0
    assert capsys.readouterr().out == "mine: RUN\n"


def test_errors_are_json_when_json_is_asked(spec: Path, capsys: Capture) -> None:
    assert run(["show", "nobody", "--json"]) == 12
    said = capsys.readouterr()
    assert said.out == ""
    assert json.loads(said.err)["exit_code"] == 12


def test_an_empty_run_root_is_no_error(capsys: Capture) -> None:
    assert run(["ls"]) == 0
    assert run(["ls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def raising(error: BaseException) -> click.Command:
    @click.command()
    def command() -> NoReturn:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.SlurmUnreachable("x"), 3),
        (errors.SlurmRefused(1, "x"), 10),
        (errors.RunDirError("x"), 12),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("x"), 70),
    ],
)
def test_every_error_is_one_line(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("fleetctl.cli.ls.command", raising(error))
    assert run(["ls"]) == code
    assert len(capsys.readouterr().err.strip().splitlines()) == 1  # click ends the line of a ^C first


def test_debug_shows_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetctl.cli.ls.command", raising(ZeroDivisionError("x")))
    with pytest.raises(ZeroDivisionError):
        run(["--debug", "ls"])


def test_exit_codes_are_one_per_family() -> None:
    table = errors.exit_codes()
    assert {code for code, _, _ in table} == {1, 2, 3, 10, 11, 12, 13, 14, 15, 16}
    assert len({name for _, name, _ in table}) == len(table)


def test_a_hostile_name_cannot_move_the_cursor(capsys: Capture) -> None:
    output.print_table(("A",), [("x\x1b[2J\ty\n",)])
    assert capsys.readouterr().out == "A\nx\\x1b[2J\\ty\\n\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_each_shell(shell: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr("click.shell_completion.BashComplete._check_version", staticmethod(lambda: None))
    assert run(["completion", shell]) == 0
    assert "_FLEETCTL_COMPLETE" in capsys.readouterr().out
