"""Whatever sacct prints and whatever people write into names, no row is lost, shifted or made up."""

from __future__ import annotations

import contextlib
from fractions import Fraction

from hypothesis import assume, given
from hypothesis import strategies as st

from fleetctl.accounting.framing import digest_of, text_of
from fleetctl.accounting.rows import parse_record, parse_step, record_key
from fleetctl.accounting.tres import billing, gpu_equivalents, parse_tres, parse_weights
from fleetctl.errors import CannotTell
from fleetctl.slurm import books_parse
from fleetctl.slurm.framing import frame
from fleetctl.slurm.sacct_fields import RECORD_FIELDS, STEP_FIELDS
from tests.contract.books import MARK, RECORD, STEP, printed, record_row

anything = st.text(st.characters(exclude_categories=[]))
stems = st.sampled_from(["\n", "1", "4711", "\x1f", MARK.replace("c", "d"), "RUNNING", "0:0", "1\n2", "|", "\0"])
names = st.lists(st.one_of(stems, anything), max_size=6).map("".join).filter(lambda text: MARK not in text)
numbers = st.integers(1, 2**64 - 1).map(str)
raw_ids = st.one_of(st.integers(1, 2**32 - 1).map(str), st.sampled_from(["7.batch", "7.0+1", "7.TBD"]))
widths = st.integers(1, 6)
pieces = st.lists(st.one_of(st.just(MARK), stems, anything, st.just(MARK.join(record_row()) + "\n")), max_size=40)


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns and rows whose inner fields hold anything, forged rows and headers included."""
    columns = ("DBIndex", *(f"Field{number}" for number in range(draw(widths))), "JobIDRaw")
    inner = st.tuples(*[st.just("7")], *[names] * (len(columns) - 3))
    row = st.tuples(st.one_of(numbers, st.just("")), inner, raw_ids).map(lambda parts: (parts[0], *parts[1], parts[2]))
    return columns, draw(st.lists(row, max_size=8))


@given(tables())
def test_framing_undoes_printing(table: tuple[tuple[str, ...], list[tuple[str, ...]]]) -> None:
    columns, rows = table
    found = frame(printed(columns, rows), MARK)
    assert (found.columns, found.rows, found.unframed) == (columns, tuple(rows), ())


@given(tables(), st.data())
def test_a_reply_cut_anywhere_is_no_answer_or_ends_with_a_row(
    table: tuple[tuple[str, ...], list[tuple[str, ...]]], data: st.DataObject
) -> None:
    text = printed(*table)
    end = data.draw(st.integers(0, len(text) - 1))
    whole = {printed(table[0], table[1][:count]) for count in range(len(table[1]) + 1)}
    assume(text[:end] not in whole)
    with contextlib.suppress(CannotTell):
        raise AssertionError(frame(text[:end], MARK))


@given(st.one_of(anything, pieces.map("".join)), st.booleans())
def test_any_text_is_rows_and_what_is_none_or_no_answer(text: str, headed: bool) -> None:
    body = text if not headed else MARK.join(RECORD_FIELDS) + "\n" + text
    with contextlib.suppress(CannotTell):
        found = frame(body, MARK)
        assert all(len(row) == len(found.columns) for row in found.rows)
        kept = sum(map(len, found.unframed)) + sum(len(field) for row in found.rows for field in row)
        assert kept + body.count(MARK) * len(MARK) + body.count("\n") >= len(body) - sum(map(len, found.columns))


fields = st.one_of(
    anything,
    st.sampled_from([*RECORD.values(), *STEP.values(), "0", "Unknown", "INVALID", "99999999999999999999", "1" * 5000]),
    st.integers(-5, 2**70).map(str),
)


@given(st.lists(fields, min_size=len(RECORD_FIELDS), max_size=len(RECORD_FIELDS)).map(tuple))
def test_a_row_is_a_record_or_a_value_error(row: tuple[str, ...]) -> None:
    with contextlib.suppress(ValueError):
        record_key(RECORD_FIELDS, row)
    with contextlib.suppress(ValueError):
        parse_record(RECORD_FIELDS, row)
    assert -(2**63) <= digest_of(row) < 2**63


@given(st.sampled_from(RECORD_FIELDS), fields)
def test_a_row_with_one_odd_field_is_a_record_that_a_database_holds_or_a_value_error(name: str, field: str) -> None:
    row = record_row(**{name: field})
    try:
        record = parse_record(RECORD_FIELDS, row)
    except ValueError:
        return
    assert record.record == record_key(RECORD_FIELDS, row)
    for value in (getattr(record, key) for key in record.__struct_fields__):
        assert value is None or isinstance(value, str | int)
        assert not isinstance(value, int) or -(2**63) <= value < 2**63
        assert not isinstance(value, str) or "\0" not in value.encode().decode()


@given(st.lists(fields, min_size=len(STEP_FIELDS), max_size=len(STEP_FIELDS)).map(tuple))
def test_a_row_is_a_step_or_a_value_error(row: tuple[str, ...]) -> None:
    with contextlib.suppress(ValueError):
        assert parse_step(STEP_FIELDS, row).step


@given(st.lists(anything, max_size=4).map(tuple), st.lists(anything, max_size=4).map(tuple))
def test_a_row_of_another_shape_is_a_value_error(columns: tuple[str, ...], row: tuple[str, ...]) -> None:
    assume(len(columns) != len(row) or "JobIDRaw" not in columns)
    for read in (parse_record, parse_step, record_key):
        with contextlib.suppress(ValueError):
            raise AssertionError(read(columns, row))


types = st.sampled_from(["h100", "a100", "a100_3g.20gb", "1g.5gb", "gpu", ""])
counts = st.integers(0, 10_000)
odd_parts = st.one_of(
    st.sampled_from(["gres/gpumem=80G", "gres/gpuutil=700", "gres/shard=3", "gres/cpu=9", "mem=16?"]),
    anything.filter(lambda text: "gres/gpu" not in text),
)
typed = st.dictionaries(types, counts, max_size=4)


@given(typed, st.one_of(st.none(), counts), st.lists(odd_parts, max_size=4))
def test_the_models_add_up_to_the_gpus(models: dict[str, int], total: int | None, odd: list[str]) -> None:
    parts = [f"gres/gpu:{model}={count}" for model, count in models.items()]
    parts += [] if total is None else [f"gres/gpu={total}"]
    held = parse_tres(",".join(["cpu=1", *parts, *odd]))
    assert held.gpus == (sum(models.values()) if total is None else total)
    words = [word.rpartition("=") for word in held.gpu_models.split(",") if word]
    assert sum(int(count) for _, _, count in words) == held.gpus
    assert [word for word, _, _ in words] == sorted({word for word, _, _ in words})


@given(st.one_of(anything, st.lists(odd_parts, max_size=6).map(",".join)))
def test_any_tres_is_read(text: str) -> None:
    held = parse_tres(text)
    assert held.gpus is None or held.gpus >= 0
    assert all(value is None or 0 <= value < 2**63 for value in (held.cpus, held.memory_mib, held.nodes, held.billing))


@given(anything)
def test_a_gpu_type_is_at_most_one_gpu(model: str) -> None:
    assert 0 < gpu_equivalents(model) <= 1


@given(anything)
def test_weights_are_read_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert all(weight >= 0 for weight in parse_weights(text).values())


shapes = st.dictionaries(st.sampled_from(["cpu", "mem", "node", "gres/gpu", "license/a"]), counts.map(Fraction))


@given(shapes, shapes)
def test_the_dearest_part_bills_no_more_than_all_of_them(
    weights: dict[str, Fraction], tres: dict[str, Fraction]
) -> None:
    everything = billing(weights, tres)
    dearest, without_gres = billing(weights, tres, {"MAX_TRES"}), billing(weights, tres, {"MAX_TRES_GRES"})
    assert everything >= without_gres >= dearest >= 0


@given(anything)
def test_a_text_that_is_kept_is_a_text_for_databases_and_terminals(raw: str) -> None:
    kept = text_of(raw)
    kept.encode()
    assert text_of(kept) == kept
    assert not any(char < " " and char not in "\t\n" for char in kept)


@given(anything)
def test_other_replies_are_values_or_no_answer(text: str) -> None:
    readers = (books_parse.parse_ids, books_parse.parse_waiting, books_parse.parse_events, books_parse.parse_used)
    for read in (*readers, books_parse.parse_shares):
        with contextlib.suppress(CannotTell):
            read(text)
    assert books_parse.hides_jobs(text) in (None, True, False)


@given(st.lists(st.tuples(st.integers(1, 2**33), st.sampled_from(["DRAIN", "DOWN*"]), anything), max_size=5))
def test_reasons_of_operators_stay_in_their_event(events: list[tuple[int, str, str]]) -> None:
    reasons = [reason.replace("|", "/") if "\n" in reason else reason for _, _, reason in events]
    text = "".join(
        f"node{number}|{start}|Unknown|{state}|root(0)|{reason}|512\n"
        for number, ((start, state, _), reason) in enumerate(zip(events, reasons, strict=True))
    )
    found = books_parse.parse_events(text)
    assert [(event.started_s, event.state, event.reason) for event in found] == [
        (start, state, reason) for (start, state, _), reason in zip(events, reasons, strict=True)
    ]
    assert {event.user for event in found} <= {"root"}
