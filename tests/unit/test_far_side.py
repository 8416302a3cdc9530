"""What an install does on a node, cut off at every step: `current` is a whole release or what it was before."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetctl.ops import far_side, far_trust
from fleetctl.ops.bundle import Bundle
from fleetctl.ops.far_side import File, digest_of, files_in, look, roll_back, unpack
from fleetctl.ops.far_trust import Refused
from tests.support import wait_until

PYTHON = "/usr/bin/python3"
GOOD = "echo fleetctl 1.2.3"
PROLOG = "prolog/fleetctl-prolog.sh"


@pytest.fixture
def prefix() -> Iterator[Path]:
    """Below a folder of ours that is in no other user's hand."""
    folder = Path(tempfile.mkdtemp(prefix="fc-", dir="/tmp"))
    yield folder / "opt"
    shutil.rmtree(folder)


def bundle(text: str = "", prolog: str = GOOD) -> Bundle:
    """The smallest that can start; the prolog is a script that does this."""
    files: list[File] = [
        ("__main__.py", 0o644, b""),
        ("fleetctl/__init__.py", 0o644, b""),
        ("fleetctl/health/__init__.py", 0o644, b""),
        ("fleetctl/health/__main__.py", 0o644, text.encode()),
        ("pynvml.py", 0o644, b""),
        ("prolog/run.sh", 0o755, b"#!/bin/sh\n"),
        (PROLOG, 0o755, f"#!/bin/sh\n{prolog}\n".encode()),
    ]
    return Bundle(tuple(files), digest_of(files))


def install(prefix: Path, wanted: Bundle, keep: int = 3) -> dict[str, Any]:
    return far_side.install(str(prefix), wanted.digest, wanted.packed, PYTHON, keep)


def current(prefix: Path) -> str:
    """The digest of what `current` names."""
    return digest_of(files_in(str((prefix / "current").resolve(strict=True))))


@pytest.fixture(autouse=True)
def same_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


class Cut(BaseException):
    """The power went."""


STEPS = ("mkdir", "open", "rename", "symlink", "unlink", "fsync", "utime", "makedirs")


def cut_at(monkeypatch: pytest.MonkeyPatch, number: int) -> Callable[[], int]:
    """The `number`th call that changes the disk, and all after it, fail; returns how many were made."""
    made = 0

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **extra: Any) -> Any:
            nonlocal made
            made += 1
            if made >= number:
                raise Cut
            return real(*args, **extra)

        return call

    for name in STEPS:
        monkeypatch.setattr(os, name, wrapped(getattr(os, name)))
    monkeypatch.setattr(shutil, "rmtree", wrapped(shutil.rmtree))
    return lambda: made


def test_whatever_step_is_the_last_one_current_is_whole(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far_side, "try_script", lambda folder, name: None)  # its own tests are below
    monkeypatch.setattr(far_side, "_compile", lambda folder, later: None)
    old, new = bundle("# old"), bundle("# new")
    seen = set()
    for number in range(1, 200):
        shutil.rmtree(prefix, ignore_errors=True)
        install(prefix, old)
        with monkeypatch.context() as patch:
            made = cut_at(patch, number)
            try:
                install(prefix, new)
                is_cut = False
            except Cut:
                is_cut = True
            assert made() >= number or not is_cut
        seen.add(current(prefix))
        assert current(prefix) in (old.digest, new.digest)
        assert install(prefix, new)["after"].startswith(new.digest[:16])
        assert current(prefix) == new.digest
        assert not [path for path in prefix.rglob("*") if ".tmp-" in path.name or path.name.endswith(".new")]
        if not is_cut:
            break
    assert not is_cut
    assert number > 20
    assert seen == {old.digest, new.digest}


def test_a_release_is_compiled_and_cannot_be_changed_by_others(prefix: Path) -> None:
    os.umask(0o002)
    wanted = bundle()
    order = {"verb": "install", "prefix": str(prefix), "digest": wanted.digest, "keep": 3}
    assert far_side.obey(order, wanted.packed)["outcome"] == "installed"
    assert list((prefix / "current" / "fleetctl" / "health" / "__pycache__").iterdir())
    assert not [path for path in prefix.rglob("*") if not path.is_symlink() and path.stat().st_mode & 0o022]


@pytest.mark.parametrize(
    ("prolog", "words"),
    [
        ("exit 1", "fleetctl-prolog.sh does not run here: status 1"),
        ("exit 0", "does not run here: status 0"),
        (f"{GOOD}; exit 1", "does not run here: fleetctl 1.2.3"),
        (f"{GOOD}; kill -9 $$", "does not run here"),
        ("kill -9 $$", r"a signal ended it \(9\)"),
        (
            "echo fleetctl: no node check: others can change it >&2",
            "does not run here: fleetctl: no node check: others",
        ),
        (f"{GOOD}; echo but >&2", "does not run here"),
        ('[ "$(/bin/cat)" = "" ] && echo "$0 $1"', "its release/prolog/fleetctl-prolog.sh --version"),
        ("head -c 100000 /dev/zero", "does not run here"),
    ],
)
def test_a_script_that_has_anything_to_say_against_it_is_never_switched_to(
    prolog: str, words: str, prefix: Path
) -> None:
    install(prefix, bundle("# old"))
    with pytest.raises(Refused, match=words):
        install(prefix, bundle("# new", prolog))
    assert current(prefix) == bundle("# old").digest
    assert len(list((prefix / "releases").iterdir())) == 1


def test_what_does_not_compile_is_never_switched_to(prefix: Path) -> None:
    install(prefix, bundle("# old"))
    with pytest.raises(Refused, match="do not compile with this Python"):
        install(prefix, bundle("def main(:"))
    assert current(prefix) == bundle("# old").digest


@pytest.mark.parametrize("name", ["prolog/fleetctl-boot.sh", "epilog/fleetctl-epilog.sh"])
def test_each_script_is_tried(name: str, prefix: Path) -> None:
    files = (*bundle().files, (name, 0o755, b"#!/bin/sh\nexit 3\n"))
    with pytest.raises(Refused, match=f"{name} does not run here: status 3"):
        install(prefix, Bundle(files, digest_of(files)))


def test_a_script_whose_interpreter_is_missing_is_refused_by_name(prefix: Path) -> None:
    files = (*bundle().files, ("prolog/fleetctl-boot.sh", 0o755, b"#!/no/sh\n"))
    with pytest.raises(Refused, match=r"fleetctl-boot.sh cannot be run in .*/releases: No such file"):
        install(prefix, Bundle(files, digest_of(files)))


def test_a_script_that_hangs_is_ended_with_what_it_started(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far_trust, "_TRY_S", 0.5)
    pid = prefix.parent / "pid"
    with pytest.raises(Refused, match=r"it did not end within 0\.5 s"):
        install(prefix, bundle(prolog=f"/bin/sleep 600 & echo $! >{pid}; wait"))
    wait_until(lambda: not is_alive(int(pid.read_text())), "the end of the script's child")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_script_is_tried_without_path_and_environment(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "HOME")
    prolog = f"/usr/bin/env | /bin/grep -E '^(HOME|PATH|LANG|PYTHON.*)='; {GOOD}"
    assert install(prefix, bundle(prolog=prolog))["outcome"] == "installed"


@pytest.mark.parametrize("verb", ["install", "roll_back"])
def test_a_login_that_is_not_roots_changes_nothing(verb: str, prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(prefix, bundle("# old"))
    install(prefix, bundle("# new"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    order = {"verb": verb, "prefix": str(prefix), "digest": bundle().digest, "keep": 3}
    answer = far_side.obey(order, bundle().packed)
    assert answer["error"].startswith("this login is user 1000, but Slurm runs the checks as root")
    assert answer["remedy"].startswith("--user root")
    assert current(prefix) == bundle("# new").digest
    assert far_side.obey({"verb": "look", "prefix": str(prefix)}, b"")["digest"] == bundle("# new").digest


@pytest.mark.parametrize("left", [0, 1, 100, -1])
def test_a_cut_transfer_leaves_nothing(left: int, prefix: Path) -> None:
    wanted = bundle()
    with pytest.raises(Refused, match="did not arrive whole"):
        far_side.install(str(prefix), wanted.digest, wanted.packed[:left], PYTHON, 3)
    assert list((prefix / "releases").iterdir()) == []


def test_another_digest_than_was_announced_leaves_nothing(prefix: Path) -> None:
    with pytest.raises(Refused, match="did not arrive whole"):
        far_side.install(str(prefix), "0" * 64, bundle().packed, PYTHON, 3)
    assert list((prefix / "releases").iterdir()) == []


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", "a//b", ".hidden", "a/./b", "x\n"])
def test_no_path_leads_out_of_the_bundle(path: str) -> None:
    with pytest.raises(Refused, match="the bundle holds"):
        unpack(Bundle(((path, 0o644, b""),), "").packed)


def test_no_mode_that_others_could_use_is_taken() -> None:
    with pytest.raises(Refused, match="with mode 4755"):
        unpack(Bundle((("x", 0o4755, b""),), "").packed)


def test_two_installs_at_once_are_one_after_the_other(prefix: Path) -> None:
    install(prefix, bundle("# old"))
    with far_side._locked(str(prefix)), pytest.raises(Refused, match="another install is at work"):
        install(prefix, bundle("# new"))
    assert install(prefix, bundle("# new"))["outcome"] == "installed"


def test_the_newest_three_stay_and_what_the_links_name(prefix: Path) -> None:
    digests = [bundle(f"# {number}").digest for number in range(5)]
    for number in range(4):
        install(prefix, bundle(f"# {number}"))
        os.utime(prefix / "current", (number, number))
    assert install(prefix, bundle("# 1"))["before"].startswith(digests[3][:16])  # an old one, there still
    install(prefix, bundle("# 4"), keep=1)
    assert {path.name for path in (prefix / "releases").iterdir()} == {digests[1][:16], digests[4][:16]}


def test_a_damaged_release_of_that_name_is_not_believed(prefix: Path) -> None:
    install(prefix, bundle())
    (prefix / "current" / "prolog" / "run.sh").chmod(0o644)
    assert install(prefix, bundle())["after"].endswith(".1")
    assert current(prefix) == bundle().digest
    with pytest.raises(Refused, match="is damaged"):
        roll_back(str(prefix))


def test_a_link_inside_a_release_shows(prefix: Path) -> None:
    install(prefix, bundle())
    (prefix / "current" / "json").symlink_to("/tmp")
    assert look(str(prefix))["digest"] != bundle().digest


@pytest.mark.parametrize(("name", "mode"), [("opt", 0o1777), ("opt", 0o775), ("opt/releases", 0o777)])
def test_a_place_that_others_can_write_is_refused(name: str, mode: int, prefix: Path) -> None:
    (prefix / "releases").mkdir(parents=True)
    (prefix.parent / name).chmod(mode)
    with pytest.raises(Refused, match="others can write"):
        install(prefix, bundle())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_place_of_another_user_is_refused(prefix: Path) -> None:
    prefix.mkdir()
    os.chown(prefix, 12345, 12345)
    with pytest.raises(Refused, match="belongs to user 12345"):
        install(prefix, bundle())


def test_an_interpreter_that_others_can_write_is_refused(prefix: Path) -> None:
    python = prefix.parent / "python"
    python.touch()
    python.chmod(0o777)
    link = prefix.parent / "link"
    link.symlink_to(python)
    with pytest.raises(Refused, match=f"others can write {python}"):
        far_side.install(str(prefix), bundle().digest, bundle().packed, str(link), 3)


def test_looking_at_an_empty_node_finds_nothing(prefix: Path) -> None:
    assert look(str(prefix)) == {"current": None, "previous": None, "digest": None, "files": {}, "texts": {}}


@pytest.mark.parametrize("verb", ["look", "roll_back", "install"])
def test_the_answer_is_one_line_after_the_mark(
    verb: str, prefix: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", PYTHON)
    wanted = bundle()
    order = {"verb": verb, "prefix": str(prefix), "digest": wanted.digest, "keep": 3}
    far_side.main(io.BytesIO(json.dumps(order).encode() + b"\n" + wanted.packed))
    *_, last = capsys.readouterr().out.splitlines()
    answer = json.loads(last.removeprefix(far_side.MARK))
    assert ("error" in answer) is (verb == "roll_back")


def test_an_error_of_the_disk_is_an_answer(prefix: Path) -> None:
    prefix.write_text("a file")
    answer = far_side.obey({"verb": "install", "prefix": str(prefix), "digest": "0" * 64, "keep": 3}, b"")
    assert answer["error"].startswith(f"{prefix}")
