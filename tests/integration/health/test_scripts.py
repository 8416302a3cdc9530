"""What Slurm runs: the scripts of prolog/ and epilog/, in a bundle as a node has it, without PATH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from fleetctl.ops.bundle import make_bundle
from fleetctl.version import VERSION
from tests.integration.conftest import short_dir
from tests.nvml.scenario import healthy, site_settings

PHASES = {"prolog": "prolog", "epilog": "epilog", "periodic": "prolog", "boot": "prolog"}
PYTHON = os.path.realpath(sys.executable)


@pytest.fixture
def place() -> Iterator[Path]:
    """Not below pytest's folders: those above a bundle must be root's."""
    folder = short_dir()
    yield folder
    shutil.rmtree(folder)


def write_bundle(place: Path, python: str = PYTHON, site: Mapping[str, object] | None = None) -> Path:
    """As `node install` leaves it: a release, and `current`."""
    release = place / "releases" / "r1"
    for path, mode, content in make_bundle(python, json.dumps(site or {}).encode()).files:
        (release / path).parent.mkdir(parents=True, exist_ok=True)
        (release / path).write_bytes(content)
        (release / path).chmod(mode)
    (place / "current").symlink_to("releases/r1")
    return place / "current"


def fake(place: Path, text: str) -> str:
    """An interpreter that does this instead."""
    path = place / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def run(current: Path, phase: str = "prolog", **environ: str) -> subprocess.CompletedProcess[str]:
    script = current / PHASES[phase] / f"fleetctl-{phase}.sh"
    return subprocess.run([script], env=environ, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("phase", PHASES)
def test_each_script_starts_its_phase_isolated_and_in_the_real_folder(phase: str, place: Path) -> None:
    current = write_bundle(place, fake(place, 'echo "$@"'))
    done = run(current, phase)
    assert done.stdout == f"-I -S {place}/releases/r1 {phase}\n"
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("phase", PHASES)
def test_asked_for_its_version_a_script_looks_at_nothing(phase: str, place: Path) -> None:
    folder = place / "spool"
    current = write_bundle(place, site={"folder": str(folder)})
    script = current / PHASES[phase] / f"fleetctl-{phase}.sh"
    done = subprocess.run([script, "--version"], env={}, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"fleetctl {VERSION}\n", "")
    assert not folder.exists()


@pytest.mark.parametrize("name", ["health/__main__.py", "health/epilog.py", "health/periodic.py", "version.py"])
def test_asked_for_its_version_it_complains_of_what_cannot_be_loaded(name: str, place: Path) -> None:
    current = write_bundle(place)
    (current / "fleetctl" / name).write_text("import no_such_module\n")
    script = current / "prolog" / "fleetctl-prolog.sh"
    done = subprocess.run([script, "--version"], env={}, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "fleetctl: no node check: ModuleNotFoundError: No module named 'no_such_module'\n"


def test_other_words_do_not_keep_a_phase_from_its_work(place: Path) -> None:
    current = write_bundle(place, fake(place, 'echo "$@"'))
    script = current / "prolog" / "fleetctl-prolog.sh"
    done = subprocess.run([script, "a", "--version"], env={}, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("/releases/r1 prolog\n")


@pytest.mark.parametrize("phase", PHASES)
def test_a_measured_fault_is_status_1(phase: str, place: Path) -> None:
    assert run(write_bundle(place, fake(place, "exit 10")), phase).returncode == 1


@pytest.mark.parametrize("end", ["exit 1", "exit 2", "exit 127", "kill -9 $$", "kill -11 $$"])
def test_any_other_end_of_the_interpreter_lets_jobs_go_on_and_is_said(end: str, place: Path) -> None:
    done = run(write_bundle(place, fake(place, end)))
    assert done.returncode == 0
    assert "fleetctl: no node check: " in done.stderr
    assert "ended with status" in done.stderr


def missing_python(current: Path) -> None:
    (current / "python").unlink()


def empty_python(current: Path) -> None:
    (current / "python").write_text("")


def gone_python(current: Path) -> None:
    (current / "python").write_text("/usr/bin/no-python\n")


def missing_run(current: Path) -> None:
    (current / "prolog" / "run.sh").unlink()


def writable(current: Path) -> None:
    (current / "fleetctl" / "health" / "model.py").chmod(0o664)


def writable_folder(current: Path) -> None:
    (current / "fleetctl" / "health").chmod(0o777)


def of_another_user(current: Path) -> None:
    os.chown(current / "site.json", 12345, 12345)


def a_link(current: Path) -> None:
    (current / "json.py").symlink_to("/tmp/json.py")


def writable_python(current: Path) -> None:
    Path((current / "python").read_text().strip()).chmod(0o757)


@pytest.mark.parametrize(
    "spoil",
    [
        missing_python,
        empty_python,
        gone_python,
        missing_run,
        writable,
        writable_folder,
        of_another_user,
        a_link,
        writable_python,
    ],
)
@pytest.mark.parametrize("phase", ["prolog", "epilog"])
def test_nothing_is_started_from_what_is_not_sound(phase: str, spoil: object, place: Path) -> None:
    current = write_bundle(place, fake(place, f"touch {place}/started"))
    assert callable(spoil)
    spoil(current)
    done = run(current, phase)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("fleetctl: no node check: ")
    assert done.stderr.count("\n") == 1
    assert not (place / "started").exists()


def test_what_the_checks_write_is_not_for_others_to_change(place: Path) -> None:
    current = write_bundle(place, fake(place, f"umask >{place}/umask"))
    subprocess.run(
        ["/bin/sh", "-c", 'umask 0002; exec "$0"', current / "prolog" / "fleetctl-prolog.sh"], env={}, check=True
    )
    assert (place / "umask").read_text() == "0022\n"


def node_site(place: Path, node: str) -> dict[str, object]:
    (place / "nodes" / node / "spool").parent.mkdir(parents=True, exist_ok=True)
    return {**site_settings(place), "settle_s": 0, "scontrol": "/nonexistent/scontrol"}


@pytest.mark.parametrize("phase", PHASES)
def test_a_healthy_node_says_nothing(phase: str, place: Path) -> None:
    healthy("h100-sxm", "n1").write(place)
    current = write_bundle(place, site=node_site(place, "n1"))
    done = run(current, phase, SLURMD_NODENAME="n1", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0,1,2,3,4,5,6,7")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_lost_link_closes_the_node_with_one_line(place: Path) -> None:
    sick = healthy("h100-sxm", "n1")
    sick.gpu(3).links[7].state = 0
    sick.write(place)
    current = write_bundle(place, site=node_site(place, "n1"))
    done = run(current, SLURMD_NODENAME="n1", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0,1,2,3,4,5,6,7")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("fleetctl: ")
    assert "GPU 3" in done.stderr
    assert done.stderr.count("\n") == 1
    elsewhere = run(current, SLURMD_NODENAME="n1", SLURM_JOB_ID="8", SLURM_JOB_GPUS="0,1")
    assert elsewhere.returncode == 0


@pytest.mark.parametrize(
    "text", ["raise SystemExit(1)", "raise SystemExit('no')", "1/0", "def main(:", "import nothing"]
)
def test_a_bug_in_the_code_itself_lets_jobs_go_on(text: str, place: Path) -> None:
    current = write_bundle(place)
    (current / "fleetctl" / "health" / "__main__.py").write_text(f"{text}\n")
    done = run(current)
    assert done.returncode == 0
    assert done.stderr.startswith("fleetctl: no node check: ")


def test_a_users_variables_and_folder_are_not_imported_from(place: Path) -> None:
    hostile = place / "hostile"
    hostile.mkdir()
    for name in ("json", "pynvml", "sitecustomize", "usercustomize", "os"):
        (hostile / f"{name}.py").write_text(f"open({str(place / 'imported')!r}, 'w').close()\n")
    healthy("h100-sxm", "n1").write(place)
    current = write_bundle(place, site=node_site(place, "n1"))
    hostile_environ = {"PYTHONPATH": str(hostile), "PYTHONHOME": str(hostile), "PYTHONSTARTUP": str(hostile / "os.py")}
    done = subprocess.run(
        [current / "prolog" / "fleetctl-prolog.sh"],
        env={**hostile_environ, "SLURMD_NODENAME": "n1", "HOME": str(hostile)},
        cwd=hostile,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not (place / "imported").exists()


@pytest.mark.parametrize(
    ("phase", "ours", "theirs", "status", "ran"),
    [
        ("prolog", 0, 0, 0, "ours theirs"),
        ("prolog", 10, 0, 1, "ours"),
        ("prolog", 0, 7, 7, "ours theirs"),
        ("epilog", 0, 0, 0, "theirs ours"),
        ("epilog", 10, 0, 1, "theirs ours"),
        ("epilog", 0, 7, 7, "theirs ours"),
        ("epilog", 10, 7, 1, "theirs ours"),
    ],
)
def test_the_scripts_that_chain_a_sites_own_lose_no_fault(
    phase: str, ours: int, theirs: int, status: int, ran: str, place: Path
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "nodes.md").read_text()
    text = next(text for text in page.split("```sh\n") if f"/etc/slurm/{phase}.sh:" in text)
    write_bundle(place, fake(place, f"echo ours >>{place}/ran; exit {ours}"))
    own, both = place / f"site-{phase}.sh", place / f"{phase}.sh"
    own.write_text(f"#!/bin/sh\necho theirs >>{place}/ran; exit {theirs}\n")
    both.write_text(text.partition("```")[0].replace("/opt/fleetctl", str(place)).replace("/etc/slurm", str(place)))
    for script in (own, both):
        script.chmod(0o755)
    assert subprocess.run([both], env={}, check=False, timeout=60).returncode == status
    assert (place / "ran").read_text().split() == ran.split()
