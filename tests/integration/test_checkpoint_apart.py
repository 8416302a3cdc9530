"""Looking at checkpoints from another process: what it does when that one hangs, dies, or talks nonsense.

A mount whose server is gone needs a server and the rights to mount it. What stands for it: a child that is stopped
(SIGSTOP), or whose storage sleeps in `open`. To its parent both are the same as one that the kernel holds up: it writes
nothing. That such a one does not even die of SIGKILL is played by not sending it.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleetctl import process
from fleetctl.checkpoint import apart
from fleetctl.checkpoint.apart import Apart
from fleetctl.checkpoint.eyes import Memory
from fleetctl.checkpoint.here import Here
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity, entry_of
from fleetctl.checkpoint.storage import Kind
from fleetctl.errors import CannotTell
from fleetctl.train import layout
from tests.checkpoints import write_checkpoint
from tests.eyes import child_that
from tests.eyes import in_open as in_open_of

HUNG_S = 3.0  # a busy machine may take more than a second to start a Python
NOTHING = "its storage does not answer: nothing for 3 s"


def entry(folder: Path) -> Entry:
    found = entry_of(folder.name)
    assert found is not None
    return found


def in_open(does: str) -> tuple[str, ...]:
    """What happens when a file of a checkpoint that is called bad is opened: of the training step 666."""
    return in_open_of(does, "step-000000666")


def says(*lines: str) -> tuple[str, ...]:
    """A child that answers each question by the next of these lines, whatever was asked."""
    return (
        sys.executable,
        "-I",
        "-c",
        f"import sys\nfor line in {lines!r}:\n sys.stdin.readline(); print(line, flush=True)",
    )


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[process.Piped]:
    """Every child that was started."""
    found: list[process.Piped] = []

    def start(argv: tuple[str, ...]) -> process.Piped:
        found.append(process.start_piped(argv))
        return found[-1]

    monkeypatch.setattr(apart, "start_piped", start)
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Three checkpoints, the middle one being bad."""
    for step in (100, 666, 700):
        write_checkpoint(tmp_path, step)
    began_s = time.monotonic()
    yield tmp_path
    assert time.monotonic() - began_s < 60, "nothing here waits for what hangs"


def look(eyes: Apart, directory: Path, step: int, level: Level = Level.STRUCTURE) -> Checked:
    return eyes.examine(directory, entry(directory / layout.committed_name(step, "run-a", "1.0")), level)


def is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


# As if it were here


def test_it_sees_what_this_process_sees(directory: Path, started: list[process.Piped]) -> None:
    os.mkdir(os.fsencode(directory) + b"/\xff\xfe")
    (directory / "new\nline\x1b[2J\u202e").touch()
    os.truncate(directory / layout.committed_name(700, "run-a", "1.0") / "shard-00001.bin", 3)
    here = Here()
    with Apart() as eyes:
        found = eyes.survey(directory, "auto")
        assert found == here.survey(directory, "auto")
        assert len(found.foreign) == 2
        for one in found.entries:
            for level in Level:
                assert eyes.examine(directory, one, level) == here.examine(directory, one, level)
        assert eyes.survey(directory / "missing", "auto").entries == ()
        assert sorted(eyes.storage.names(directory)) == sorted(here.storage.names(directory))
        inside = found.entries[0].name
        assert eyes.storage.look_all(directory, inside) == here.storage.look_all(directory, inside)
        assert set(eyes.storage.listing(directory, inside)) == set(eyes.storage.look_all(directory, inside))
        assert eyes.storage.look(directory, inside, "manifest.json") == here.storage.look(
            directory, inside, "manifest.json"
        )
        assert eyes.storage.look(directory, inside, "nothing") is None
        assert [eyes.kind(path) for path in (directory, directory / "x", Path("/dev/null"), Path("a\0b"))] == [
            Kind.FOLDER,
            None,
            Kind.OTHER,
            None,
        ]
        assert eyes.single(directory / inside, Kind.FOLDER) == entry(directory / inside)
        assert eyes.single(directory, Kind.FOLDER) is None
        eyes.make(directory / "a" / "b")
        eyes.make(directory / "a" / "b")
        assert (directory / "a" / "b").is_dir()
    assert len(started) == 1
    assert is_dead(started[0].pid)


def test_errors_arrive_as_they_were(directory: Path) -> None:
    (directory / "file").touch()
    (directory / "loop").symlink_to("loop")
    with Apart() as eyes:
        with pytest.raises(CannotTell, match="Not a directory"):
            eyes.survey(directory / "file", "auto")
        with pytest.raises(CannotTell):
            eyes.storage.names(directory / "loop")
        with pytest.raises(FileNotFoundError):
            eyes.storage.listing(directory, "missing")
        with pytest.raises(NotADirectoryError):
            eyes.make(directory / "file" / "x")
        with pytest.raises(OSError, match="not a name"):
            eyes.storage.look(directory, "..")
        with pytest.raises(OSError, match="symbolic links"):
            eyes.kind(directory / "loop")
        with pytest.raises(OSError, match="other process"):
            eyes.storage.open(directory, "file")
        assert look(eyes, directory, 100).validity is Validity.VALID


def test_bytes_are_told_while_it_reads(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 1, shards=8, data=bytes(16 << 20))
    told: list[int] = []
    slow = child_that("child._EVERY_S = 0.0")
    with Apart(argv=slow) as eyes:
        found = eyes.examine(tmp_path, entry(folder), Level.CONTENT, pulse=told.append)
    assert (found.validity, sum(told)) == (Validity.VALID, found.bytes_read)
    assert len(told) > 100
    told.clear()
    with Apart() as eyes:
        found = eyes.examine(tmp_path, entry(folder), Level.CONTENT, pulse=told.append)
    assert sum(told) == found.bytes_read
    assert len(told) < 60, "a few a second"


def test_notes_are_kept_by_the_other_process(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c", 1)
    memory = Memory(str(tmp_path / "notes" / "x"), trusted=True)
    with Apart() as eyes:
        first = eyes.examine(tmp_path / "c", entry(folder), Level.CONTENT, memory=memory)
        again = eyes.examine(tmp_path / "c", entry(folder), Level.CONTENT, memory=memory)
    assert first.bytes_read - again.bytes_read == first.size_bytes
    assert (first.level, again.level) == (Level.CONTENT, Level.CONTENT)


def test_nothing_is_started_before_it_is_needed(started: list[process.Piped]) -> None:
    with Apart():
        pass
    assert started == []
    with Apart() as eyes:
        eyes.start()
        assert len(started) == 1


# A storage that hangs


def hung(eyes: Apart, directory: Path) -> None:
    """What each verb says then."""
    found = look(eyes, directory, 700)
    assert (found.validity, found.level, found.reason) == (Validity.UNKNOWN, None, NOTHING)
    with pytest.raises(CannotTell, match="does not answer"):
        eyes.survey(directory, "auto")
    with pytest.raises(CannotTell, match="does not answer"):
        eyes.storage.names(directory)
    verbs: list[Callable[[], object]] = [
        lambda: eyes.storage.look(directory, "x"),
        lambda: eyes.storage.listing(directory),
        lambda: eyes.storage.look_all(directory),
        lambda: eyes.kind(directory),
        lambda: eyes.make(directory),
        lambda: eyes.single(directory, Kind.FOLDER),
    ]
    for verb in verbs:
        with pytest.raises(OSError, match="does not answer") as error:
            verb()
        assert error.value.errno == errno.ETIMEDOUT


def test_a_child_that_is_stopped_is_given_up_once_and_for_all(directory: Path, started: list[process.Piped]) -> None:
    with Apart(silence_s=HUNG_S) as eyes:
        assert look(eyes, directory, 100).validity is Validity.VALID
        os.kill(started[0].pid, signal.SIGSTOP)
        began_s = time.monotonic()
        hung(eyes, directory)
        assert time.monotonic() - began_s < 3 * HUNG_S, "the silence is waited for once"
    assert len(started) == 1
    assert is_dead(started[0].pid)


def test_an_open_that_never_returns_is_given_up(directory: Path, started: list[process.Piped]) -> None:
    with Apart(argv=in_open("time.sleep(1e6)"), silence_s=HUNG_S) as eyes:
        found = eyes.survey(directory, "own")
        assert len(found.entries) == 3
        assert look(eyes, directory, 666).reason == NOTHING
        hung(eyes, directory)
    assert len(started) == 1


def test_a_listing_that_never_returns_is_given_up(directory: Path) -> None:
    stuck = child_that("storage.LocalStorage.names = lambda self, directory: time.sleep(1e6)")
    with Apart(argv=stuck, silence_s=HUNG_S) as eyes, pytest.raises(CannotTell, match="does not answer"):
        eyes.survey(directory, "auto")


def test_one_that_even_sigkill_does_not_end_is_left_behind(directory: Path, started: list[process.Piped]) -> None:
    """It stands for one that the kernel holds up (state D): it gets the signal and stays."""
    with Apart(silence_s=HUNG_S) as eyes:
        eyes.start()
        os.kill(started[0].pid, signal.SIGSTOP)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.killpg", lambda pid, number: None)
            began_s = time.monotonic()
            hung(eyes, directory)
            eyes.close()
            assert time.monotonic() - began_s < 3 * HUNG_S
    assert not is_dead(started[0].pid)
    os.kill(started[0].pid, signal.SIGKILL)
    os.waitpid(started[0].pid, 0)


def test_slow_is_not_hung(tmp_path: Path) -> None:
    """A read each 0.2 s, for longer than the silence that is borne."""
    folder = write_checkpoint(tmp_path, 1, shards=1, data=bytes(16 << 20))
    slow = child_that("""
whole = storage._LocalBlob.read_into
def read_into(self, buffer, offset):
    time.sleep(0.2)
    return whole(self, buffer, offset)
storage._LocalBlob.read_into = read_into
""")
    with Apart(argv=slow, silence_s=HUNG_S) as eyes:
        began_s = time.monotonic()
        found = eyes.examine(tmp_path, entry(folder), Level.CONTENT)
    assert found.level is Level.CONTENT
    assert time.monotonic() - began_s > HUNG_S


# A child that dies


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),  # as the kernel does when memory is short
        ("os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
        ("os._exit(7)", "status 7"),
        ("raise KeyError('x')", "broke off: KeyError: 'x' (<string>:"),
    ],
)
def test_one_that_dies_of_a_checkpoint_is_replaced(
    does: str, why: str, directory: Path, started: list[process.Piped]
) -> None:
    with Apart(argv=in_open(does)) as eyes:
        bad = look(eyes, directory, 666)
        assert bad.validity is Validity.UNKNOWN
        assert why in bad.reason
        assert look(eyes, directory, 700).validity is Validity.VALID, "the others are looked at by another one"
        assert look(eyes, directory, 100).validity is Validity.VALID
        assert look(eyes, directory, 666).reason == bad.reason, "and what it died of never again"
    assert len(started) == 3, "one that dies is tried again, once"


def test_killed_from_outside_in_the_middle(directory: Path, started: list[process.Piped]) -> None:
    with Apart(argv=in_open("os.kill(os.getppid(), signal.SIGUSR1); time.sleep(1e6)")) as eyes:
        eyes.start()
        before = signal.signal(signal.SIGUSR1, lambda *_: os.kill(started[-1].pid, signal.SIGKILL))
        try:
            found = look(eyes, directory, 666)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert (found.validity, found.reason) == (Validity.UNKNOWN, "the process that looked at it ended with signal 9")
        assert look(eyes, directory, 700).validity is Validity.VALID


def test_killed_from_outside_once_is_no_word_about_the_checkpoint(
    directory: Path, started: list[process.Piped]
) -> None:
    with Apart() as eyes:
        assert look(eyes, directory, 700).validity is Validity.VALID
        os.kill(started[0].pid, signal.SIGKILL)
        assert look(eyes, directory, 700).validity is Validity.VALID
    assert len(started) == 2


def test_one_that_computes_is_not_one_that_hangs(directory: Path) -> None:
    burn = "end = time.monotonic() + 3 * HUNG_S\nwhile time.monotonic() < end: pass".replace("HUNG_S", str(HUNG_S))
    with Apart(argv=in_open(f"exec({burn!r})"), silence_s=HUNG_S) as eyes:
        assert look(eyes, directory, 666).validity is Validity.VALID


def test_when_they_all_die_no_more_are_started(directory: Path, started: list[process.Piped]) -> None:
    with Apart(argv=(sys.executable, "-I", "-c", "import sys; sys.exit(3)")) as eyes:
        for _ in range(20):
            with pytest.raises(CannotTell, match="status 3"):
                eyes.survey(directory, "auto")
        assert look(eyes, directory, 100).validity is Validity.UNKNOWN
    assert len(started) == 16


def test_a_program_that_is_missing_is_unknown(directory: Path) -> None:
    with Apart(argv=("/nonexistent/python",)) as eyes:
        assert "no process can be started" in look(eyes, directory, 100).reason
        with pytest.raises(CannotTell):
            eyes.survey(directory, "auto")


@pytest.mark.parametrize(
    "line",
    ["", "x", "{}", "[]", "null", '{"type":"answer"', '{"type":"other"}', '{"type":"pulse"}', "[" * 100_000, "\x00"],
)
def test_garbage_is_unknown(line: str, directory: Path) -> None:
    with Apart(argv=says(line)) as eyes:
        assert look(eyes, directory, 100).reason == "the process that looks talks nonsense"


@pytest.mark.parametrize("value", ["1", "{}", '{"entry":null}', '"VALID"'])
def test_an_answer_of_another_kind_is_unknown(value: str, directory: Path) -> None:
    with Apart(argv=says(f'{{"type":"answer","value":{value}}}')) as eyes:
        assert look(eyes, directory, 100).reason == "the process that looks talks nonsense"


def test_a_line_without_end_is_unknown(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "_MOST_LINE_BYTES", 1 << 20)
    endless = (sys.executable, "-I", "-c", "import sys\nwhile True: sys.stdout.write('x' * 65536)")
    with Apart(argv=endless) as eyes:
        assert look(eyes, directory, 100).reason == "the process that looks talks without end"


def test_what_prints_into_its_answers_does_not(directory: Path) -> None:
    noisy = in_open("print('{\"type\":\"answer\"}'); os.write(1, b'noise')")
    with Apart(argv=noisy) as eyes:
        assert look(eyes, directory, 666).validity is Validity.VALID


# Memory


def test_memory_has_an_end_and_it_is_that_of_a_look_only(directory: Path, started: list[process.Piped]) -> None:
    """A reader that asks for 64 GiB: more than the limit, and than this machine may have."""
    with Apart(argv=in_open("bytearray(64 << 30)")) as eyes:
        found = look(eyes, directory, 666)
        assert (found.validity, "MemoryError" in found.reason) == (Validity.UNKNOWN, True)
        assert look(eyes, directory, 700).validity is Validity.VALID
    assert len(started) == 1, "it lives on"


def test_the_limit_of_memory_is_set(directory: Path) -> None:
    with Apart() as eyes:
        eyes.start()
        assert eyes.kind(directory) is Kind.FOLDER
        child = eyes._child
        assert child is not None
        limits = Path(f"/proc/{child.pid}/limits").read_text()
        (line,) = [line for line in limits.splitlines() if line.startswith("Max address space")]
        assert int(line.split()[3]) == 8 << 30
        assert Path(f"/proc/{child.pid}/oom_score_adj").read_text() == "1000\n"


# Ends


def test_it_ends_with_whoever_asked(directory: Path) -> None:
    """Also when that one was killed in the middle of a question."""
    import subprocess

    code = f"""
import os
from pathlib import Path
from fleetctl.checkpoint.apart import Apart
eyes = Apart()
eyes.kind(Path({str(directory)!r}))
print(eyes._child.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    until_s = time.monotonic() + 10
    while not is_dead(int(done.stdout)) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert is_dead(int(done.stdout))


def test_ctrl_c_closes_it(directory: Path, started: list[process.Piped], monkeypatch: pytest.MonkeyPatch) -> None:
    with Apart() as eyes:
        assert eyes.kind(directory) is Kind.FOLDER

        def interrupt(self: process.Piped, timeout_s: float) -> bytes:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(process.Piped, "receive", interrupt)
            with pytest.raises(KeyboardInterrupt):
                eyes.kind(directory)
        assert is_dead(started[0].pid)
        assert eyes.kind(directory / "missing") is None, "and not the answer to the question before"


# A start


def test_a_start_whose_storage_hangs_cannot_tell_and_says_why(
    directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """And one whose newest checkpoint kills its reader goes on from the one before it."""
    from fleetctl.launch.model import CheckpointOrder, JobIdentity
    from fleetctl.launch.resume import Resume, choose
    from fleetctl.rundir.attempts import Attempts
    from fleetctl.rundir.model import EventKind
    from fleetctl.rundir.store import Store
    from tests.unit.clocks import START, StillClock
    from tests.unit.test_rundir import make_run

    store = Store(tmp_path_factory.mktemp("runs"))
    store.ensure()
    run = make_run(store, "r-aaaaaa")
    run.submission_dir(1).mkdir()
    run.event_log("login").append(START, EventKind.INTENT, submission=1)
    attempts, order = Attempts(run.attempts_dir(None)), CheckpointOrder(str(directory), format="own", load="latest")

    def start(major: int, argv: tuple[str, ...]) -> Resume:
        assert attempts.claim((major, 0))
        job = JobIdentity("7", "7", None, None, "n1", 0)
        eyes = Apart(argv=argv, silence_s=HUNG_S)
        return choose(order, attempts, (major, 0), run.history(), job, StillClock(), open_eyes=lambda: eyes)

    for number, stuck in enumerate(
        (
            "here.Here.survey = lambda *args: time.sleep(1e6)",
            "storage.LocalStorage.open = lambda *args: time.sleep(1e6)",
        ),
        start=1,
    ):
        with pytest.raises(CannotTell, match="its storage does not answer"):
            start(number, child_that(stuck))
    (directory / layout.committed_name(700, "run-a", "1.0") / "manifest.json").unlink()
    resume = start(3, in_open("os.kill(os.getpid(), 9)"))
    assert (resume.training_step, resume.hold) == (100, None)
    assert "step-000000666@run-a@1.0: unknown: the process that looked at it ended with signal 9" in resume.passed_over
