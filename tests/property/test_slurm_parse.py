"""Whatever a command prints, a parser gives a value or its declared error."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.errors import CannotTell, FleetctlError
from fleetctl.slurm import hosts, rows, running
from fleetctl.slurm.model import Accepted, JobId, JobState, NotSent, Refused, Unknown, has_task
from fleetctl.slurm.parse import (
    classify_submit,
    command_error,
    one_line,
    parse_config,
    parse_reservations,
    parse_sbatch_id,
)
from fleetctl.slurm.reasons import explain

MARK = "\x1f0badcafe\x1f"
numbers = st.integers(1, 2**32 - 1)
ids = st.one_of(
    st.builds(JobId, numbers),
    st.builds(JobId, numbers, array_index=st.integers(0, 4_000_000)),
    st.builds(JobId, numbers, het_offset=st.integers(0, 127)),
)
texts = st.text(st.characters(exclude_categories=[])).filter(lambda text: MARK not in text)
stems = st.sampled_from(
    ["sbatch: error: ", "Submitted batch job ", "Batch job submission failed: ", "12", ";", "\n", MARK]
)
outputs = st.lists(st.one_of(stems, texts), max_size=12).map("".join)


@given(ids)
def test_an_id_survives_being_printed(job_id: JobId) -> None:
    assert JobId.parse(str(job_id)) == job_id


@given(texts)
def test_a_text_is_an_id_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert JobId.parse(text).base > 0


@given(st.sets(st.integers(0, 200), min_size=1), st.integers(0, 200))
def test_an_array_expression_holds_its_own_indices_only(members: set[int], index: int) -> None:
    assert has_task(",".join(map(str, sorted(members))) + "%3", index) is (index in members)


@given(texts, ids)
def test_the_id_is_found_after_any_noise(noise: str, job_id: JobId) -> None:
    assert parse_sbatch_id(f"{noise}\nSubmitted batch job {job_id.base}\n") == JobId(job_id.base)


@given(st.integers(-64, 255), outputs, outputs)
def test_every_ended_sbatch_has_an_answer(status: int, stdout: str, stderr: str) -> None:
    answer = classify_submit(status, stdout, stderr)
    assert isinstance(answer, Accepted) is (parse_sbatch_id(stdout) is not None)
    if isinstance(answer, Refused | NotSent | Unknown):
        assert answer.text
        assert answer.text.isprintable()
    if isinstance(answer, Refused | NotSent):
        assert status in range(1, 256)


@given(outputs)
def test_a_killed_sbatch_without_an_id_is_unknown(stderr: str) -> None:
    assert isinstance(classify_submit(137, "", stderr), Unknown)


@given(st.integers(-64, 255), outputs, outputs)
def test_every_failed_command_is_one_of_our_errors(status: int, stdout: str, stderr: str) -> None:
    assert isinstance(command_error(status, stdout, stderr), FleetctlError)


@given(outputs)
def test_words_fit_on_one_line(text: str) -> None:
    assert one_line(text).isprintable()
    assert len(one_line(text)) <= 1000


@given(texts)
def test_a_state_is_always_read_and_only_known_words_end_a_job(text: str) -> None:
    state = JobState.parse(text)
    assert not (state.is_terminal and state.unknown)


@given(outputs, st.sampled_from([rows.parse_squeue, rows.parse_sacct, rows.parse_sinfo_nodes, running.parse_steps]))
def test_rows_are_read_or_cannot_be_told(text: str, parse: object) -> None:
    with contextlib.suppress(CannotTell):
        assert callable(parse)
        parse(text, MARK)


@given(outputs)
def test_reservations_are_read_or_cannot_be_told(text: str) -> None:
    with contextlib.suppress(CannotTell):
        parse_reservations(text)


@given(outputs)
def test_a_configuration_is_read_or_cannot_be_told(text: str) -> None:
    with contextlib.suppress(CannotTell):
        parse_config(text)


@given(st.lists(st.tuples(numbers, texts, texts), max_size=5))
def test_whatever_users_write_every_row_comes_back_whole(jobs: list[tuple[int, str, str]]) -> None:
    fixed = ("u", "RUNNING", "None"), ("gpu", "a", "", "1", "1", "1", "1", "1:00")
    text = ""
    for number, name, free in jobs:
        fields = [str(number), name, *fixed[0], free, *fixed[1], free, free, free, "", "1", "", "", free, str(number)]
        text += MARK.join(fields) + "\n"
    found = rows.parse_squeue(text, MARK)
    assert [(job.id.base, job.name) for job in found] == [(number, name) for number, name, _ in jobs]
    assert [job.comment for job in found] == ["" if free == "(null)" else free for _, _, free in jobs]


KEYS = [" JobName=", " UserId=", " WCKey=", " JobState=", " JOB_GRES=gpu:99 ", " MinCPUsNode=", " ", "\n", "(null)"]
fields = st.lists(st.one_of(st.sampled_from(KEYS), st.text(max_size=3)), max_size=9).map("".join)


@given(
    fields, fields, fields, fields, st.sampled_from([(" JOB_GRES=gpu:16 ", 16), (" JOB_GRES=(null) ", 0), ("", None)])
)
def test_no_text_of_a_user_forges_what_a_job_holds(
    name: str, wckey: str, network: str, comment: str, truth: tuple[str, int | None]
) -> None:
    gres, gpus = truth
    shown = (
        f"JobId=7 ArrayJobId=6 ArrayTaskId=1 JobName={name} UserId=u(1) Account=a QOS=q WCKey={wckey} JobState=RUNNING "
        f"CoreSpec=*{gres}  Nodes=n1 MinCPUsNode=1 Network={network} Command=/x Comment={comment} Power=\n"
    )
    fixed = ["7", "6", "1", "N/A", "N/A", "RUNNING", "0", "n1", "n1", "cpu=1", "1", "1", "N/A"]
    row = [*fixed, name, wckey, "7"]
    text = MARK.join(row) + "\n"
    assert running.find_allocation(text, MARK, JobId(6, array_index=1)) == row
    assert running.parse_allocation(row, shown).gpus == gpus


@given(outputs, fields)
def test_whatever_scontrol_shows_an_allocation_is_read(shown: str, name: str) -> None:
    row = ["7", "6", "1", "N/A", "N/A", "RUNNING", "0", "n1", "n1", "cpu=1", "1", "1", "N/A", name, "(null)", "7"]
    assert running.parse_allocation(row, shown).node_list == "n1"


@given(st.text(st.sampled_from("n1029[]-,!&^@%: x"), max_size=20))
def test_a_text_is_a_host_list_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        found = hosts.expand(text)
        assert hosts.expand(hosts.fold(found)) == tuple(sorted(found, key=hosts.expand(hosts.fold(found)).index))


@given(texts)
def test_every_reason_has_a_sentence(reason: str) -> None:
    assert explain(reason)
