"""Processes told apart by start time, and the state file; only /proc of ourselves is read."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from fleetctl.clock import SystemClock
from fleetctl.errors import SandboxError, UsageError
from fleetctl.sandbox import procs, site, state
from fleetctl.sandbox.conf import Site
from fleetctl.sandbox.model import Partition, SandboxConfig
from fleetctl.sandbox.procs import Proc
from fleetctl.sandbox.yard import Yard

SITE = Site("/tmp/s", "c", "h", "u", (22, 5), 1, 2, {"node1": 3})


def ourselves() -> Proc:
    stat = procs.stat_of(os.getpid())
    assert stat is not None
    return stat.proc


def test_a_reused_pid_is_neither_alive_nor_signalled() -> None:
    us = ourselves()
    stranger = replace(us, start_ticks=us.start_ticks - 1)
    assert procs.alive(us)
    assert procs.send(us, signal.SIGCONT)
    assert not procs.alive(stranger)
    assert not procs.send(stranger, signal.SIGCONT)


def test_a_pid_that_nobody_has_is_gone() -> None:
    nobody = Proc(2**22 + 1, 1)  # above the kernel's highest pid_max
    assert procs.stat_of(nobody.pid) is None
    assert not procs.alive(nobody)
    assert not procs.send(nobody, signal.SIGCONT)


def test_we_are_a_member_of_our_own_namespace() -> None:
    namespace = procs.pid_namespace(os.getpid())
    assert namespace is not None
    assert ourselves() in {stat.proc for stat in procs.members(namespace)}
    assert procs.members(1) == ()


def test_after_a_reboot_every_pid_is_a_strangers() -> None:
    running = state.State(procs.boot_id(), state.UP, SandboxConfig(), SITE, {"munged": ourselves()})
    clock = SystemClock()
    assert Yard(Path("/tmp/s"), clock, running).alive("munged")
    assert not Yard(Path("/tmp/s"), clock, replace(running, boot_id="another")).alive("munged")
    assert not Yard(Path("/tmp/s"), clock, running).alive("slurmctld")


def test_state_survives_the_disk(tmp_path: Path) -> None:
    assert state.load(tmp_path) is None
    config = SandboxConfig(settings=(("A", "1"),), partitions=(Partition("p", (("Nodes", "ALL"),)),))
    kept = state.State("boot", state.UP, config, SITE).started("munged", Proc(1, 2)).ordered("node1", "cut")
    state.save(tmp_path, kept)
    assert state.load(tmp_path) == kept
    state.save(tmp_path, kept.ordered("node1", None))
    assert state.load(tmp_path) == kept.ordered("node1", None)
    assert [path.name for path in tmp_path.iterdir()] == ["sandbox.json"]
    state.forget(tmp_path)
    assert state.load(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 1}', "not json"])
def test_a_damaged_state_is_an_error_not_an_empty_sandbox(tmp_path: Path, text: str) -> None:
    tmp_path.joinpath("sandbox.json").write_text(text)
    with pytest.raises(SandboxError, match=r"sandbox\.json"):
        state.load(tmp_path)


def test_a_state_of_a_newer_fleetctl_is_refused(tmp_path: Path) -> None:
    state.save(tmp_path, state.State("boot", state.UP, SandboxConfig(), SITE, schema=state.SCHEMA + 1))
    with pytest.raises(SandboxError, match="schema 2"):
        state.load(tmp_path)


def test_a_directory_in_other_use_is_refused_and_not_emptied(tmp_path: Path) -> None:
    precious = tmp_path / "log"
    precious.mkdir()
    with pytest.raises(SandboxError, match="in other use"):
        site.claim_directory(tmp_path)
    assert precious.is_dir()
    assert not (tmp_path / state.LOCK).exists()
    site.claim_directory(tmp_path / "new" / "one")
    site.claim_directory(tmp_path / "new" / "one")


@pytest.mark.parametrize("text", ["/var/tmp/" + "x" * 60, "/var/tmp/two words", "/var/tmp/a,b", "/var/tmp/%n"])
def test_a_directory_that_slurm_cannot_use_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--dir"):
        site.checked_directory(Path(text), SandboxConfig())


def test_the_longest_socket_fits_to_the_byte() -> None:
    room = 107 - len("/" + "spool/node64/node64_4294967294.4294967294")
    assert site.checked_directory(Path("/" + "x" * (room - 1)), SandboxConfig())
    with pytest.raises(UsageError, match="too long by 1 bytes"):
        site.checked_directory(Path("/" + "x" * room), SandboxConfig())


def test_a_private_tmp_must_not_hide_the_sandbox() -> None:
    with pytest.raises(UsageError, match="private"):
        site.checked_directory(Path("/tmp/s"), SandboxConfig(private_tmp=True))


def test_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path: None if name == "slurmd" else f"/usr/sbin/{name}")
    with pytest.raises(SandboxError, match="not installed: slurmd") as caught:
        site.slurm_version(SandboxConfig())
    assert caught.value.remedy == "apt-get install slurm-wlm munge"
    monkeypatch.setattr("shutil.which", lambda name, path: None if name == "mariadbd" else f"/usr/sbin/{name}")
    with pytest.raises(SandboxError, match="not installed: mariadbd") as caught:
        site.slurm_version(SandboxConfig(accounting=True))
    assert caught.value.remedy == "apt-get install slurmdbd mariadb-server"
