from __future__ import annotations

import pytest

from fleetctl.health.asked import asked_from, job_of, parse_gpus, uid_of
from fleetctl.health.model import CLOSING, Asked, Outcome, Phase

JOB_PHASES = [Phase.PROLOG, Phase.EPILOG]


@pytest.mark.parametrize("phase", JOB_PHASES)
@pytest.mark.parametrize(
    ("text", "gpus"),
    [("0", (0,)), ("0,1", (0, 1)), ("0-3", (0, 1, 2, 3)), ("0-1,6", (0, 1, 6)), (" 7 , 2", (2, 7)), ("3,3", (3,))],
)
def test_the_jobs_gpus_are_read_from_the_forms_that_slurm_writes(
    phase: Phase, text: str, gpus: tuple[int, ...]
) -> None:
    environ = {"SLURM_JOB_GPUS": text, "SLURM_JOB_ID": "42"}
    assert asked_from(environ, phase) == (Asked(phase, gpus, "42"), ())


@pytest.mark.parametrize("phase", JOB_PHASES)
@pytest.mark.parametrize("environ", [{}, {"SLURM_JOB_GPUS": ""}, {"SLURM_JOB_GPUS": "  "}])
def test_a_job_without_gpus_asks_for_none(phase: Phase, environ: dict[str, str]) -> None:
    assert asked_from(environ, phase) == (Asked(phase, ()), ())


@pytest.mark.parametrize(
    "text",
    [
        "MIG-GPU-8f1c2d3e/7/0",
        "GPU-8f1c2d3e-aaaa-bbbb-cccc-000000000000",
        "0,MIG-1",
        "gpu:0",
        "0:1",
        "1-0",
        "-1",
        "0-",
        "0,,1",
        "0-9999999999",
        "2000",
        "٣",
        "²",
        "0x1",
        "1" * 100_000,
        "0\x00",
        "; rm -rf /",
        "[0-3]",
        "\ud800",
    ],
)
def test_other_names_ask_for_all_gpus_and_a_note_that_never_closes(text: str) -> None:
    asked, (note,) = asked_from({"SLURM_JOB_GPUS": text}, Phase.PROLOG)
    assert asked.gpus is None
    assert note.outcome is Outcome.CANNOT_TELL
    assert note.care < CLOSING
    assert len(note.words) < 200
    assert note.words.isascii()
    assert note.words.isprintable()


def test_a_number_as_slurm_pads_it_is_a_number() -> None:
    assert parse_gpus("007") == (7,)


@pytest.mark.parametrize("phase", [Phase.PERIODIC, Phase.BOOT, Phase.HAND])
def test_outside_a_job_the_whole_node_is_asked_about(phase: Phase) -> None:
    assert asked_from({"SLURM_JOB_GPUS": "0", "SLURM_JOB_ID": "1"}, phase) == (Asked(phase), ())


@pytest.mark.parametrize("text", ["", "x", "1;2", "-1", "1_2", "1" * 65, "٣", "1\n", "../1"])
def test_what_is_no_job_id_is_none(text: str) -> None:
    assert job_of({"SLURM_JOB_ID": text}) is None
    assert job_of({}) is None


@pytest.mark.parametrize(
    ("text", "uid"), [("0", 0), ("1000", 1000), ("", None), ("root", None), ("-1", None), ("9" * 11, None)]
)
def test_a_uid_is_a_number(text: str, uid: int | None) -> None:
    assert uid_of({"SLURM_JOB_UID": text}) == uid
