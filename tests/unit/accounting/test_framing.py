"""The rows of a reply: whole, or an error, or kept as they came; and what a database can hold of their texts."""

from __future__ import annotations

import pytest

from fleetctl.accounting.framing import digest_of, text_of
from fleetctl.errors import CannotTell
from fleetctl.slurm.framing import frame
from fleetctl.slurm.sacct_fields import RECORD_FIELDS, STEP_FIELDS, offered
from tests.contract.books import MARK, printed, record_row, step_row

HEADER = MARK.join(RECORD_FIELDS) + "\n"


def line(**changes: str) -> str:
    return MARK.join(record_row(**changes)) + "\n"


def test_a_header_alone_is_no_rows() -> None:
    found = frame(HEADER, MARK)
    assert found.columns == RECORD_FIELDS
    assert (found.rows, found.unframed) == ((), ())


@pytest.mark.parametrize(
    "text",
    [
        *("", "\n", "sacct: error: nothing\n", HEADER[:-1], HEADER[:-2] + "\n", line(), "Slurm accounting\n" + HEADER),
        HEADER.replace("DBIndex", "dbd"),
    ],
    ids=[
        *("nothing", "a blank line", "words", "cut behind the header", "a cut header", "no header", "words before it"),
        "another one",
    ],
)
def test_a_reply_without_its_header_is_no_answer(text: str) -> None:
    with pytest.raises(CannotTell):
        frame(text, MARK)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "a|b",
            "a\nb",
            "\n\n",
            "\n",
            "x\n" + HEADER.replace(MARK, "\x1f"),
            "\x1f",
            "\x1fdeadbeef\x1f",
            "1\n2",
            "7\n4711",
            "\udcff\udc80",
        ),
        "a\n4711\x1fdeadbeef\x1f123\x1fdeadbeef\x1froot\n99",
    ],
)
def test_a_name_may_be_anything(name: str) -> None:
    rows = (record_row(JobName=name), record_row(DBIndex="4712", Comment=name, AdminComment=name))
    found = frame(printed(RECORD_FIELDS, rows), MARK)
    assert found.rows == rows
    assert found.unframed == ()


def test_a_row_without_a_dbindex_is_a_row() -> None:
    rows = (record_row(DBIndex=""), record_row(DBIndex="", JobName="a\nb"), record_row())
    assert frame(printed(RECORD_FIELDS, rows), MARK).rows == rows


@pytest.mark.parametrize("end", range(1, len(line(JobName="a\n12\nb"))))
def test_a_reply_that_was_cut_is_no_answer_wherever_it_was_cut(end: int) -> None:
    text = HEADER + line() + line(JobName="a\n12\nb")[:-end]
    with pytest.raises(CannotTell):
        frame(text, MARK)


DAMAGE = {
    "fields are missing": MARK.join(record_row()[:9]) + "\n",
    "its end is missing": MARK.join(record_row()[:9]) + f"{MARK}9\n",
    "there are too many fields": MARK.join([*record_row()[:9], *record_row()]) + "\n",
    "it has no mark": "sacct: error: something\n",
    "its last field is a word": line(JobIDRaw="error"),
    "two lines of words": "sacct: error: something\n1\n",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_row_is_kept_and_costs_no_other_row(damage: str) -> None:
    before, after = record_row(JobName="before\n1"), record_row(DBIndex="4712", JobName="2\nafter")
    found = frame(f"{HEADER}{MARK.join(before)}\n{damage}{MARK.join(after)}\n", MARK)
    assert before in found.rows
    assert after in found.rows
    assert set(found.rows) <= {before, after}
    assert "".join(found.unframed).replace("\n", "") == damage.replace("\n", "")


def test_damage_among_rows_of_one_line_is_kept() -> None:
    first, last = record_row(), record_row(DBIndex="4712")
    for damage in (line(JobIDRaw="error"), line(DBIndex="error")):
        found = frame(f"{HEADER}{MARK.join(first)}\n{damage}{MARK.join(last)}\n", MARK)
        assert set(found.rows) <= {first, last}
        assert last in found.rows
        assert "error" in "".join(found.unframed)


def test_damage_at_the_beginning_is_kept_as_well() -> None:
    found = frame(HEADER + "garbage\n" + line() + line(), MARK)
    assert found.rows == (record_row(), record_row())
    assert found.unframed == ("garbage",)


@pytest.mark.parametrize("name", ["1\n2", "1\n", "1\nx", "x\n2", "\n2"])
@pytest.mark.parametrize("left", range(1, len(RECORD_FIELDS) - 1))
def test_nobody_forges_a_row_with_what_damage_leaves_over(left: int, name: str) -> None:
    """A name looks like the end of one row and the beginning of another, wherever the damage puts it."""
    forger = record_row(JobName=name, Comment=name, AdminComment=name)
    for damage in (forger[:left], (*forger[:left], "9"), (*forger[:left], *forger)):
        found = frame(HEADER + MARK.join(damage) + "\n" + 3 * (MARK.join(forger) + "\n"), MARK)
        assert set(found.rows) == {forger}
        assert len(found.rows) >= 2


def test_steps_are_rows_too() -> None:
    rows = tuple(step_row(JobIDRaw=raw, JobName="a\nb") for raw in ("123", "123.batch", "123.0+1", "123.TBD"))
    assert frame(printed(STEP_FIELDS, rows), MARK).rows == rows


def test_newer_columns_are_asked_for_where_sacct_knows_them() -> None:
    asked = offered(RECORD_FIELDS, ("SLUID", "FailedNode"), frozenset({"SLUID", "JobID"}))
    assert asked == (*RECORD_FIELDS[:-1], "SLUID", "JobIDRaw")


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ("prüfung 训练 🚀", "prüfung 训练 🚀"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x00\x01\x1b[31m\x7f\x85", r"\x00\x01\x1b[31m\x7f\x85"),
        ("\udcff\udc80", r"\xff\x80"),
        ("\ud800", r"\ud800"),
        ("\u200b\u202e", "\u200b\u202e"),
    ],
)
def test_a_database_can_hold_every_text(raw: str, kept: str) -> None:
    assert text_of(raw) == kept
    assert text_of(kept) == kept


def test_a_digest_is_a_signed_64_bit_number_and_stays_the_same() -> None:
    assert digest_of(("a", "b")) == digest_of(("a", "b")) == -17643764250920285
    rows = [
        ("a", "b"),
        ("b", "a"),
        ("a", "b", ""),
        ("ab",),
        ("a\x1fb",),
        ("", "ab"),
        ("\udcff",),
        ("\udcfe",),
        (r"\xff",),
    ]
    digests = {digest_of(row) for row in rows}
    assert len(digests) == len(rows)
    assert all(-(2**63) <= digest < 2**63 for digest in digests)
