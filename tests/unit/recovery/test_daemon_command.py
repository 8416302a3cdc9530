"""The command line of the daemon without a cluster: mistakes are told before anything is contacted."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.cli.app import run
from fleetctl.cli.daemon_unit import unit_text

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETCTL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("FLEETCTL_DATABASE", str(tmp_path / "db"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm
    for name in ("SLURM_CONF", "FLEETCTL_NOTIFY", "FLEETCTL_NODES", "NOTIFY_SOCKET"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--every", "0s"], "between 1 s and an hour"),
        (["--every", "2h"], "between 1 s and an hour"),
        (["--every", "5"], "a duration with a unit"),
        (["--notify", "pager:1"], "expected webhook:URL, mail:ADDRESS or command:PROGRAM"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_at_once(words: list[str], said: str, capsys: Capture) -> None:
    assert run(["daemon", "run", "--once", *words]) == 2
    assert said in capsys.readouterr().err


def test_channels_in_the_environment_are_checked_too(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("FLEETCTL_NOTIFY", "mail:me@x hook:https://chat.example/services/verysecret")
    assert run(["daemon", "run", "--once"]) == 2
    assert "verysecret" not in capsys.readouterr().err


def test_where_slurm_is_not_installed_it_does_not_wait_for_it(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    from fleetctl import process
    from fleetctl.errors import ProgramMissing

    def missing(argv: object, **_: object) -> process.Completed:
        raise ProgramMissing("scontrol: not found")

    monkeypatch.setattr(process, "run", missing)
    assert run(["daemon", "run"]) == 10


def test_the_commands_say_what_they_do_without_a_database(capsys: Capture) -> None:
    assert run(["daemon", "status"]) == 16
    assert "there is no accounting database" in capsys.readouterr().err


@pytest.mark.parametrize("operator", [True, False])
def test_a_unit_names_the_program_that_prints_it(operator: bool) -> None:
    text = unit_text(operator, Path("/opt/my tools/50%/fleetctl"))
    assert 'ExecStart="/opt/my tools/50%%/fleetctl" daemon run' in text
    assert "Type=notify" in text
    assert "KillMode=mixed" in text
    assert ("User=fleetctl" in text) is operator
    assert ("--act" in text) is not operator, "that of the cluster observes until somebody adds it"
