"""What squeue, sdiag, sacctmgr, sreport and sshare say about accounting; asking again, and the log of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest

from fleetctl.errors import CannotTell, SlurmRefused, SlurmUnreachable
from fleetctl.slurm import books_parse
from fleetctl.slurm.books import Books, Happened, Rows, Share, Used
from fleetctl.slurm.wrap_books import LoggedBooks, RetryingBooks
from tests.unit.clocks import StillClock

CONFIGURATION = """Configuration data as of 2026-11-30T19:22:32
PrivateData            = none
SlurmUserId            = slurm(64030)

SlurmDBD configuration:
PluginDir              = /usr/lib
PrivateData            = {hidden}
"""


def test_ids_are_one_a_line() -> None:
    assert books_parse.parse_ids("7\n4227858433\n7\n") == {7, 4_227_858_433}
    assert books_parse.parse_ids("") == frozenset()
    for text in ("7_1\n", "slurm_load_jobs error\n", "12345678901\n"):
        with pytest.raises(CannotTell):
            books_parse.parse_ids(text)


def test_the_queue_to_slurmdbd_is_in_sdiag() -> None:
    assert books_parse.parse_waiting("Agent queue size:     3\nDBD Agent queue size: 0\n\nJobs submitted: 1\n") == 0
    assert books_parse.parse_waiting("Agent queue size:     3\nDBD Agent queue size: 25430\n") == 25_430
    for text in ("", "Agent queue size:     3\n", "DBD Agent queue size: many\n"):
        with pytest.raises(CannotTell):
            books_parse.parse_waiting(text)


@pytest.mark.parametrize(
    ("hidden", "hides"),
    [("none", False), ("(null)", False), ("jobs", True), ("accounts,jobs,usage", True), ("usage, Jobs", True)],
)
def test_slurmdbds_own_private_data_counts(hidden: str, hides: bool) -> None:
    assert books_parse.hides_jobs(CONFIGURATION.format(hidden=hidden)) is hides


@pytest.mark.parametrize(
    ("tracked", "tracks"),
    [
        ("cpu,mem,energy,node,billing,fs/disk,vmem,pages", False),  # Slurm's default
        ("cpu,node,gres/gpu", True),
        ("cpu,gres/gpu:h100,node", True),
        ("cpu, GRES/gpu", True),
        ("cpu,gres/gpumem,gres/gpuutil,gres/shard", False),
        ("", False),
        (None, None),
    ],
)
def test_whether_gpus_are_counted_is_told_by_the_tracked_resources(tracked: str | None, tracks: bool | None) -> None:
    assert books_parse.tracks_gpus(tracked) is tracks


def test_without_slurmdbds_section_nothing_is_known() -> None:
    assert books_parse.hides_jobs(CONFIGURATION.partition("SlurmDBD")[0]) is None
    assert books_parse.hides_jobs("SlurmDBD configuration:\nPluginDir = /usr\n") is None


def test_root_and_slurms_user_see_everything() -> None:
    seeing = {user for user in ("root", "slurm", "alice") if books_parse.is_slurm_user(CONFIGURATION, user)}
    assert seeing == {"root", "slurm"}


def test_node_events_are_read_with_any_reason() -> None:
    text = (
        "gpu04|1796014963|1796014976|DRAIN|root(0)|fleetctl: test|512\n"
        "gpu04|1796014980|Unknown|DOWN*|ops(1000)|a|b\ngpu05|1|2\n\nend|1\n"
        "gpu05|1796014990|0|UNK||cold-start|0\n"
    )
    assert books_parse.parse_events(text) == (
        Happened("gpu04", 1796014963, 1796014976, "DRAIN", "fleetctl: test", "root"),
        Happened("gpu04", 1796014980, None, "DOWN*", "a|b\ngpu05|1|2\n\nend", "ops"),
        Happened("gpu05", 1796014990, None, "UNK", "cold-start", ""),
    )
    assert books_parse.parse_events("") == ()


@pytest.mark.parametrize(
    "text",
    [
        "gpu04|1796014963|1796014976|DRAIN|root(0)|fleetctl: te",
        "gpu04|2026-11-30T05:02:43|Unknown|DRAIN|root(0)|x|512\n",
        "words\ngpu04|1796014963|1796014976|DRAIN|root(0)|x|512\n",
    ],
)
def test_another_reply_than_events_is_no_answer(text: str) -> None:
    with pytest.raises(CannotTell):
        books_parse.parse_events(text)


def test_what_slurm_charged_is_by_account_and_user() -> None:
    text = "root||gres/gpu|7200\n physics|alice|gres/gpu:h100|3600\n"
    assert books_parse.parse_used(text) == (
        Used("root", "", "gres/gpu", 7200),
        Used("physics", "alice", "gres/gpu:h100", 3600),
    )
    assert books_parse.parse_used("") == ()
    for odd in ("physics|alice|gres/gpu\n", "physics|alice|gres/gpu|50.00%\n", "Usage reported in TRES Seconds\n"):
        with pytest.raises(CannotTell):
            books_parse.parse_used(odd)


def test_shares_may_be_none_or_infinite() -> None:
    text = "root|||0.000000|0|1.000000||\n  physics|alice|parent|0.5|1234|0.25|nan|inf\n"
    assert books_parse.parse_shares(text) == (
        Share("root", "", None, 0.0, 0, 1.0, None, None),
        Share("physics", "alice", None, 0.5, 1234, 0.25, None, float("inf")),
    )
    with pytest.raises(CannotTell):
        books_parse.parse_shares("root|1\n")


class FewAnswers:
    """Books whose every method gives the next of these answers."""

    def __init__(self, clock: StillClock, takes_s: float, answers: Sequence[object]) -> None:
        self.left = list(answers)
        self._clock, self._takes_s = clock, takes_s

    def __getattr__(self, name: str) -> Callable[..., object]:
        return self._next

    def _next(self, *args: object) -> object:
        self._clock.sleep(self._takes_s)
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def few(clock: StillClock, takes_s: float, *answers: object) -> Books:
    return cast(Books, FewAnswers(clock, takes_s, answers))


ROWS = Rows(("DBIndex", "JobID", "JobIDRaw"), (("1", "1", "1"),))
CALLS: dict[str, tuple[Callable[[Books], object], object]] = {
    "cluster": (lambda books: books.cluster(), "fleet"),
    "records": (lambda books: books.records(1, 2), ROWS),
    "records_of": (lambda books: books.records_of([1], 2), ROWS),
    "steps": (lambda books: books.steps([1], 2), ROWS),
    "alive": (lambda books: books.alive(), frozenset({1})),
    "waiting": (lambda books: books.waiting(), 3),
    "sees_all": (lambda books: books.sees_all("alice"), None),
    "node_events": (lambda books: books.node_events(1), ()),
    "used": (lambda books: books.used(1, 2), ()),
    "shares": (lambda books: books.shares(), ()),
}


@pytest.mark.parametrize(("call", "answer"), CALLS.values(), ids=CALLS.keys())
def test_what_cannot_be_reached_is_asked_once_more(call: Callable[[Books], object], answer: object) -> None:
    clock = StillClock()
    books = few(clock, 0.1, SlurmUnreachable("refused"), answer)
    assert call(RetryingBooks(books, clock)) == answer
    assert clock.slept_s == pytest.approx(1.2)
    with pytest.raises(SlurmUnreachable, match="second"):
        call(RetryingBooks(few(clock, 0, SlurmUnreachable("first"), SlurmUnreachable("second")), clock))


@pytest.mark.parametrize("error", [SlurmRefused(1, "no"), CannotTell("cut")])
def test_a_final_answer_is_not_asked_for_again(error: Exception) -> None:
    clock = StillClock()
    books = few(clock, 0, error, ROWS)
    with pytest.raises(type(error)):
        RetryingBooks(books, clock).records(1, None)
    assert books.records(1, None) == ROWS


def test_what_took_its_time_is_not_asked_again() -> None:
    clock = StillClock()
    books = few(clock, 120, SlurmUnreachable("sacct did not end within 120 s"), ROWS)
    with pytest.raises(SlurmUnreachable):
        RetryingBooks(books, clock).records(1, None)
    assert books.records(1, None) == ROWS


@pytest.mark.parametrize("name", CALLS)
def test_every_call_is_one_line_of_the_log(name: str) -> None:
    call, answer = CALLS[name]
    lines: list[str] = []
    clock = StillClock()
    assert call(LoggedBooks(few(clock, 0.25, answer), lines.append, clock)) == answer
    with pytest.raises(CannotTell):
        call(LoggedBooks(few(clock, 0, CannotTell("cut")), lines.append, clock))
    assert lines[0].startswith(f"slurm books {name}")
    assert lines[0].endswith("(250 ms)")
    assert lines[1].endswith("-> CannotTell: cut (0 ms)")
