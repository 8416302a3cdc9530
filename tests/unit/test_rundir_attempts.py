"""The attempts of a run: one owner each, whatever NFS answers; and readers that know what they do not know."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar

import pytest

from fleetctl.errors import RunDirError
from fleetctl.rundir.attempts import Attempts, Claimed
from fleetctl.rundir.model import AttemptNumber, Save

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLAIMANTS = 8
T = TypeVar("T")


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path / "attempts")


def at_once(call: Callable[[], T]) -> list[T]:
    barrier = Barrier(CLAIMANTS)

    def wait_and_call(_: int) -> T:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(CLAIMANTS) as pool:
        return list(pool.map(wait_and_call, range(CLAIMANTS)))


def stood(attempts: Attempts, number: AttemptNumber, *names: str) -> Path:
    assert attempts.claim(number)
    attempts.write_stands(number, names, NOW, "7")
    return attempts.path(number) / "claim.json"


def unreadable(path: Path) -> None:
    """Reading it is an OSError, for root too: ELOOP."""
    path.unlink(missing_ok=True)
    path.symlink_to(path)


def test_of_those_that_claim_one_number_exactly_one_wins(attempts: Attempts) -> None:
    for sub in range(10):
        assert at_once(lambda sub=sub: attempts.claim((1, sub))).count(True) == 1  # type: ignore[misc]
        assert os.listdir(attempts.path((1, sub))) == ["owner.json"]


def test_those_that_claim_the_next_number_get_different_ones(attempts: Attempts) -> None:
    assert sorted(at_once(attempts.claim_next)) == [(major, 0) for major in range(1, CLAIMANTS + 1)]


def test_the_owner_says_who_it_is(attempts: Attempts) -> None:
    assert attempts.claim_next(host="node1", now=NOW) == (1, 0)
    owner = {"schema": 1, "host": "node1", "time": NOW.isoformat()}
    assert json.loads((attempts.path((1, 0)) / "owner.json").read_text()) == owner
    assert not attempts.claim((1, 0), host="node2", now=NOW)
    assert json.loads((attempts.path((1, 0)) / "owner.json").read_text()) == owner


def test_a_claim_whose_answers_were_lost_is_won(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    def losing_the_answer(call: Callable[..., Any]) -> Callable[..., Any]:
        def repeated(*args: Any, **kwargs: Any) -> None:
            call(*args, **kwargs)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

        return repeated

    attempts.folder.mkdir()
    monkeypatch.setattr(os, "mkdir", losing_the_answer(os.mkdir))
    monkeypatch.setattr(os, "link", losing_the_answer(os.link))
    assert attempts.claim((1, 0))
    assert not attempts.claim((1, 0))
    assert attempts.claim_next() == (2, 0)


@pytest.mark.parametrize("name", ["claim.json", "output.log", ".claim.json.0a1b"])
def test_what_a_fleetctl_without_owners_claimed_is_taken(attempts: Attempts, name: str) -> None:
    attempts.path((1, 0)).mkdir(parents=True)
    (attempts.path((1, 0)) / name).write_text("{}")
    assert not attempts.claim((1, 0))
    assert os.listdir(attempts.path((1, 0))) == [name]
    assert attempts.claim_next() == (2, 0)


def test_who_died_while_it_claimed_keeps_nobody_out(attempts: Attempts) -> None:
    attempts.path((1, 1)).mkdir(parents=True)
    (attempts.path((1, 1)) / ".owner.json.0a1b").write_text("{")
    assert attempts.claim((1, 1))
    assert not attempts.claim((1, 1))


def test_a_file_of_that_name_is_no_attempt_of_ours(attempts: Attempts) -> None:
    attempts.folder.mkdir()
    (attempts.folder / "1.0").write_text("")
    assert not attempts.claim((1, 0))


def test_a_claim_that_cannot_be_written_is_one_line(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        with pytest.raises(RunDirError, match=r"cannot claim .*/1\.0: No space left"):
            attempts.claim((1, 0))
    assert attempts.claim((1, 0)), "it was nobody's"


def test_the_newest_older_claim_says_what_stands(attempts: Attempts) -> None:
    assert attempts.claimed_before((1, 0)) is None
    stood(attempts, (1, 0), "a")
    stood(attempts, (1, 1), "a", "b")
    assert attempts.claim((2, 0)), "it died before it wrote what stands"
    assert attempts.claimed_before((3, 0)) == Claimed((1, 1), frozenset({"a", "b"}))
    assert attempts.claimed_before((1, 1)) == Claimed((1, 0), frozenset({"a"}))


def test_a_claim_says_what_lay_there_before_the_run(attempts: Attempts) -> None:
    assert attempts.claim((1, 0))
    aside = {"checkpoint-500": {"model.safetensors": 1_767_225_600.123456}}
    attempts.write_stands((1, 0), (), NOW, "7", aside)
    assert attempts.claimed_before((1, 1)) == Claimed((1, 0), frozenset(), aside)


def test_a_claim_that_cannot_be_read_is_not_skipped(attempts: Attempts) -> None:
    stood(attempts, (1, 0), "a")
    unreadable(stood(attempts, (2, 0), "a", "b"))
    with pytest.raises(RunDirError, match=r"cannot read .*2\.0/claim\.json"):
        attempts.claimed_before((3, 0))
    assert attempts.claimed_before((2, 0)) == Claimed((1, 0), frozenset({"a"}))


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "{}", '{"stands": "a"}', '{"stands": [1]}', "[" * 99_999, "\udcff"),
        *('{"stands": [], "aside": []}', '{"stands": [], "aside": {"a": 1.5}}'),
        '{"stands": [], "aside": {"a": {"b": "now"}}}',
    ],
    ids=range(11),
)
def test_a_damaged_claim_is_not_skipped(attempts: Attempts, text: str) -> None:
    stood(attempts, (1, 0), "a")
    stood(attempts, (2, 0), "a", "b").write_text(text, errors="surrogateescape")
    with pytest.raises(RunDirError, match=r"2\.0/claim\.json is damaged") as caught:
        attempts.claimed_before((3, 0))
    assert "\n" not in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("name", "value", "had"),
    [
        ("resume.json", {"path": "/ckpt/a", "once_valid": False}, True),
        ("resume.json", {"path": None, "once_valid": True}, True),
        ("resume.json", {"path": None, "once_valid": False}, False),
        ("seen.json", {"schema": 1, "name": "a", "training_step": 1}, True),
    ],
)
def test_whether_an_attempt_had_a_valid_checkpoint_is_known(
    attempts: Attempts, name: str, value: dict[str, object], had: bool
) -> None:
    assert attempts.claim((1, 0))
    assert not attempts.had_valid((1, 0))
    attempts.write((1, 0), name, value)
    assert attempts.had_valid((1, 0)) is had
    unreadable(attempts.path((1, 0)) / name)
    with pytest.raises(RunDirError, match=name):
        attempts.had_valid((1, 0))


LINE = '{"training_step": 7, "name": "s-7", "state": "committed", "total_s": 2.5, "flag": null'


@pytest.mark.parametrize(
    ("more", "saved_at", "size_bytes"),
    [
        ("", None, None),  # of an older fleetctl
        (', "time": "2026-01-01T00:00:00.500+00:00", "bytes": 12', NOW.replace(microsecond=500_000), 12),
        (', "time": "2026-01-01T00:00:00", "bytes": true', None, None),
        (', "time": 7, "bytes": 1e400', None, None),
        (', "time": "x", "bytes": 9223372036854775808', None, None),
    ],
)
def test_when_a_save_ended_and_its_size_are_told_where_they_were_written(
    attempts: Attempts, more: str, saved_at: datetime | None, size_bytes: int | None
) -> None:
    path = stood(attempts, (1, 0)).parent / "saves.jsonl"
    path.write_text(f"{LINE}{more}}}\n{LINE}")
    assert attempts.saves((1, 0)) == (Save(7, "s-7", True, 2.5, None, None, saved_at, size_bytes),)


def test_a_step_of_more_than_any_number_is_no_save(attempts: Attempts) -> None:
    (stood(attempts, (1, 0)).parent / "saves.jsonl").write_text(LINE.replace("7,", "1e400,") + "}\n")
    assert attempts.saves((1, 0)) == ()


def test_saves_and_loads_that_cannot_be_read_are_not_known(attempts: Attempts) -> None:
    assert attempts.claim((1, 0))
    folder = attempts.path((1, 0))
    unreadable(folder / "saves.jsonl")
    unreadable(folder / "load-failed-1.json")
    (folder / "load.json").write_text('{"state": "loaded"}')
    assert attempts.saves((1, 0)) == ()
    assert attempts.loads((1, 0)) == ({"state": "loaded"},)
    assert attempts.loads((2, 0)) == ()
