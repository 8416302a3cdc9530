"""Every way in which a step of DeepSpeed is known to break, and what each level says about it."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleetctl.checkpoint import known
from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.formats import deepspeed
from fleetctl.checkpoint.formats.deepspeed_names import missing, shards_of
from fleetctl.checkpoint.look import Ledger, Look
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.checkpoint.survey import survey
from tests.formats.damage import Damage, cut, flip, instead, put, remove, zeros
from tests.formats.deepspeed import (
    SAVED_AT_S,
    model_bytes,
    optimizer_bytes,
    write_experts,
    write_pipeline,
    write_universal,
    write_zero,
)
from tests.formats.torch import legacy_bytes, torch_bytes

VALID, INCOMPLETE, CORRUPT, UNKNOWN = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT, Validity.UNKNOWN
Verdicts = tuple[Validity, Validity, Validity]
ALL_VALID, ALL_INCOMPLETE, ALL_CORRUPT = (VALID,) * 3, (INCOMPLETE,) * 3, (CORRUPT,) * 3
AT_STRUCTURE, AT_CONTENT, GAP = (VALID, CORRUPT, CORRUPT), (VALID, VALID, CORRUPT), (VALID, INCOMPLETE, INCOMPLETE)
MODEL, FIRST, LAST = (
    "mp_rank_00_model_states.pt",
    "zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "zero_pp_rank_3_mp_rank_00_optim_states.pt",
)
SECOND, RANKS = "mp_rank_01_model_states.pt", 4


def part(rank: int, mp: int = 0, *, kind: str = "optim") -> str:
    return f"zero_pp_rank_{rank}_mp_rank_{mp:02d}_{kind}_states.pt"


def check(folder: Path, level: Level, ranks: int | None = None) -> Checked:
    return examine(LocalStorage(), folder.parent, Entry(folder.name, 4), level, ranks=ranks)


def look_at(folder: Path) -> Look:
    return Look(LocalStorage(), folder.parent, (folder.name,), Ledger(lambda _: None))


def verdicts(folder: Path, ranks: int | None = None) -> tuple[Checked, ...]:
    return tuple(check(folder, level, ranks) for level in Level)


def same_level(found: tuple[Checked, ...]) -> None:
    """Each says the deepest level that is still valid."""
    passed = None
    for level, one in zip(Level, found, strict=True):
        passed = level if one.validity is VALID else passed
        assert one.level == passed, one
        assert one.format == "deepspeed"
        assert one.reason.isprintable()


# of a step with four parts, no older step, nobody who knows the ranks
DAMAGES: list[tuple[str, Damage, Verdicts, str]] = [
    ("part cut to 0", cut(FIRST, lambda n: 0), AT_STRUCTURE, f"{FIRST} has 0 bytes"),
    ("part cut to 1", cut(FIRST, lambda n: 1), AT_STRUCTURE, FIRST),
    ("part cut to half", cut(LAST, lambda n: n // 2), AT_STRUCTURE, LAST),
    ("part short of 1", cut(LAST, lambda n: n - 1), AT_STRUCTURE, LAST),
    ("model cut to half", cut(MODEL, lambda n: n // 2), AT_STRUCTURE, MODEL),
    ("model cut to 0", cut(MODEL, lambda n: 0), AT_STRUCTURE, MODEL),
    ("bit of a part's data", flip(LAST, lambda n: n // 2), AT_CONTENT, "another content"),
    ("bit of the model's data", flip(MODEL, lambda n: n // 2), AT_CONTENT, "another content"),
    ("hole in a part", zeros(FIRST, lambda n: n // 2, lambda n: 200), AT_CONTENT, "another content"),
    ("zeros at the end", zeros(FIRST, lambda n: n - 300, lambda n: 300), AT_STRUCTURE, FIRST),
    ("all zeros", zeros(MODEL, lambda n: 0, lambda n: n), AT_STRUCTURE, MODEL),
    ("no first part", remove(part(0)), ALL_INCOMPLETE, f"{FIRST} is missing"),
    ("no middle part", remove(part(2)), ALL_INCOMPLETE, f"{part(2)} is missing"),
    ("no last part", remove(part(3)), GAP, f"{LAST} is missing"),
    ("no second half", remove(part(2), part(3)), GAP, f"{part(2)} is missing (and 1 more)"),
    ("no first half", remove(part(0), part(1)), ALL_INCOMPLETE, f"{FIRST} is missing (and 1 more)"),
    ("no part at all", remove(*map(part, range(4))), GAP, f"{FIRST} is missing (and 3 more)"),
    ("no model", remove(MODEL), ALL_INCOMPLETE, f"{MODEL} is missing"),
    ("a part of an older, larger training", put(part(4), optimizer_bytes(8, 4)), AT_STRUCTURE, "of another save"),
    ("a part of the same size and another training", put(part(1), optimizer_bytes(8, 1)), AT_STRUCTURE, "8, that of"),
    ("a second model of an older save", put(SECOND, model_bytes(3, 4)), (INCOMPLETE, CORRUPT, CORRUPT), SECOND),
    ("a FIFO as part", instead(part(1), os.mkfifo), ALL_CORRUPT, "is no file"),
    ("a link as part", instead(part(1), lambda path: path.symlink_to(FIRST)), ALL_CORRUPT, "is no file"),
    ("a folder as part", instead(part(1), Path.mkdir), ALL_CORRUPT, "is no file"),
    ("a model without counters", put(MODEL, torch_bytes({"module": {}}, {})), ALL_VALID, ""),
    ("a model of a list", put(MODEL, torch_bytes([1], {})), ALL_VALID, ""),
    ("absurd counters", put(MODEL, model_bytes(-1, 10**30, 0)), ALL_VALID, ""),
    ("counters of another kind", put(MODEL, model_bytes(4, "4", True)), ALL_VALID, ""),  # type: ignore[arg-type]
    ("somebody's file", put("notes.txt", b"x"), ALL_VALID, ""),
    ("somebody's checkpoint", put("scheduler.pt", b"x"), ALL_VALID, ""),
    ("a name with an absurd rank", put(part(10**9), b"x"), ALL_VALID, ""),
    ("a name with a rank in other digits", put("zero_pp_rank_04_mp_rank_00_optim_states.pt", b"x"), ALL_VALID, ""),
    ("a part too many that says nothing", put(part(4), torch_bytes({}, {})), AT_STRUCTURE, "there were 4 data"),
    ("the old way of torch.save", put(part(1), legacy_bytes()), ALL_VALID, "has no checksum"),
    ("no checksums", put(part(1), optimizer_bytes(4, 1, crcs=False)), ALL_VALID, "has no checksum"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "expected", "word"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_damage(damage: Damage, expected: Verdicts, word: str, tmp_path: Path) -> None:
    folder = write_zero(tmp_path, 4, data_ranks=RANKS)
    damage(folder)
    found = verdicts(folder)
    assert tuple(one.validity for one in found) == expected, [one.reason for one in found]
    assert word in found[-1].reason
    if "no checksum" not in word:
        same_level(found)


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize(
    ("stage", "bf16", "model_ranks"), [(0, False, 1), (1, False, 1), (2, True, 2), (3, False, 1), (3, True, 2)]
)
def test_a_whole_one_is_valid(stage: int, bf16: bool, model_ranks: int, level: Level, tmp_path: Path) -> None:
    folder = write_zero(tmp_path, 4, stage=stage, bf16=bf16, model_ranks=model_ranks, data_ranks=3)
    found = check(folder, level)
    assert (found.validity, found.level, found.reason, found.format) == (VALID, level, "", "deepspeed")
    assert found.ranks == (3 * model_ranks if stage else None)
    assert found.size_bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert found.saved_at == datetime.fromtimestamp(SAVED_AT_S, UTC)
    assert not found.uncommitted


def test_names_opens_no_file_and_only_content_reads_the_data(tmp_path: Path) -> None:
    folder = write_zero(tmp_path, 4, data_ranks=RANKS)
    names, structure, content = verdicts(folder)
    assert names.bytes_read == 0
    assert 0 < structure.bytes_read < (names.size_bytes or 0) / 2
    assert content.bytes_read > 5 * 4 * 600


@pytest.mark.parametrize("kind", ["model", "optim"])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_zero_3_needs_the_model_and_the_optimizer_of_each_rank(kind: str, rank: int, tmp_path: Path) -> None:
    folder = write_zero(tmp_path, 4, stage=3, data_ranks=RANKS)
    (folder / part(rank, kind=kind)).unlink()
    found = verdicts(folder)
    assert [one.validity for one in found] == [INCOMPLETE] * 3
    assert found[1].reason == f"{part(rank, kind=kind)} is missing"


@pytest.mark.parametrize("mp", [0, 1])
def test_each_model_parallel_rank_needs_as_many_parts(mp: int, tmp_path: Path) -> None:
    folder = write_zero(tmp_path, 4, data_ranks=3, model_ranks=2)
    (folder / part(2, mp)).unlink()
    assert check(folder, Level.NAMES).reason == f"{part(2, mp)} is missing"


def test_the_last_model_parallel_rank_is_missed_by_what_the_others_say(tmp_path: Path) -> None:
    folder = write_zero(tmp_path, 4, data_ranks=2, model_ranks=2)
    for path in folder.glob("*mp_rank_01*"):
        path.unlink()
    names, structure, _ = verdicts(folder)
    assert (names.validity, structure.validity) == (VALID, INCOMPLETE)
    assert {one.name for one in structure.pieces} == {"mp_rank_01_model_states.pt", part(0, 1), part(1, 1)}


def test_a_shorter_set_shows_in_the_older_step_or_the_number_of_ranks_already_by_names(tmp_path: Path) -> None:
    write_zero(tmp_path, 3, data_ranks=RANKS)
    folder = write_zero(tmp_path, 4, data_ranks=RANKS)
    (folder / LAST).unlink()
    found = verdicts(folder)
    assert [(one.validity, one.reason) for one in found] == [(INCOMPLETE, f"{LAST} is missing")] * 3
    same_level(found)
    shutil.rmtree(tmp_path / "global_step3")
    assert check(folder, Level.NAMES).validity is VALID
    assert check(folder, Level.NAMES, ranks=RANKS).reason == f"{LAST} is missing"


def test_where_no_file_says_it_the_older_step_and_the_number_of_ranks_tell(tmp_path: Path) -> None:
    folder = write_zero(tmp_path, 4, data_ranks=RANKS)
    (folder / LAST).unlink()
    (folder / MODEL).write_bytes(torch_bytes({"global_steps": 4}, {}))
    for rank in range(3):
        (folder / part(rank)).write_bytes(torch_bytes({"optimizer_state_dict": {}}, {}))
    assert check(folder, Level.STRUCTURE).validity is VALID
    assert check(folder, Level.STRUCTURE, ranks=RANKS).reason == f"{LAST} is missing"
    write_zero(tmp_path, 3, data_ranks=RANKS)
    assert check(folder, Level.STRUCTURE).reason == f"{LAST} is missing"


def test_a_training_that_went_on_with_fewer_ranks_is_whole(tmp_path: Path) -> None:
    """The files say that there were two: the older step and the ranks of now are no evidence then."""
    write_zero(tmp_path, 3, data_ranks=RANKS)
    found = check(write_zero(tmp_path, 4, data_ranks=2), Level.STRUCTURE, ranks=RANKS)
    assert (found.validity, found.level, found.ranks) == (VALID, Level.STRUCTURE, 2)


def test_only_the_next_older_step_is_evidence(tmp_path: Path) -> None:
    write_zero(tmp_path, 2, data_ranks=RANKS)
    write_zero(tmp_path, 3, data_ranks=2)
    write_zero(tmp_path, 5, data_ranks=RANKS)
    assert check(write_zero(tmp_path, 4, data_ranks=2), Level.NAMES).validity is VALID


def test_a_training_that_went_on_with_more_ranks_is_whole(tmp_path: Path) -> None:
    write_zero(tmp_path, 3, data_ranks=2)
    found = verdicts(write_zero(tmp_path, 4, data_ranks=RANKS))
    assert [(one.validity, one.ranks) for one in found] == [(VALID, RANKS)] * 3


@pytest.mark.parametrize("stage", [1, 3])
def test_zero_within_groups_makes_fewer_parts_than_there_are_ranks(stage: int, tmp_path: Path) -> None:
    """MiCS: two parts among four ranks, and it takes four ranks to load it."""
    folder = write_zero(tmp_path, 4, stage=stage, data_ranks=2)
    for path in folder.glob("*model_states.pt"):
        path.write_bytes(model_bytes(4, 4))
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.ranks, found.reason) == (VALID, 4, "")


def test_one_training_step_in_all_files(tmp_path: Path) -> None:
    folder = write_zero(tmp_path, 4, stage=3, data_ranks=3)
    (folder / part(1, kind="model")).write_bytes(model_bytes(3, 3))
    found = check(folder, Level.STRUCTURE)
    assert (found.validity, found.faults) == (CORRUPT, 1)
    assert found.reason == f"{part(1, kind='model')} is of another save: its training step is 3, that of others is 4"


@pytest.mark.parametrize("damaged", [FIRST, MODEL])
def test_each_fault_is_named(damaged: str, tmp_path: Path) -> None:
    folder = write_zero(tmp_path, 4, data_ranks=RANKS)
    os.truncate(folder / damaged, 10)
    (folder / part(2)).unlink()
    found = check(folder, Level.STRUCTURE)
    assert {one.name: one.validity for one in found.pieces} == {damaged: CORRUPT, part(2): INCOMPLETE}


def test_no_more_than_some_missing_parts_are_told(tmp_path: Path) -> None:
    folder = write_zero(tmp_path, 4)
    for mp in (0, 10**6 - 1):
        (folder / part(10**6 - 1, mp)).touch()
    found = check(folder, Level.STRUCTURE)
    assert found.validity is CORRUPT
    assert found.faults < 3000


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("layer_1_expert_3_mp_rank_00_model_states.pt", ALL_INCOMPLETE),
        ("layer_1_expert_0_mp_rank_00_model_states.pt", ALL_INCOMPLETE),
        ("expp_rank_0_mp_rank_00_optim_states.pt", ALL_INCOMPLETE),
        ("expp_rank_1_mp_rank_00_optim_states.pt", ALL_INCOMPLETE),
        ("mp_rank_00_model_states.pt", ALL_INCOMPLETE),
    ],
)
def test_an_expert_that_the_older_step_has_is_missed(name: str, expected: Verdicts, tmp_path: Path) -> None:
    write_experts(tmp_path, 3)
    folder = write_experts(tmp_path, 4)
    assert [one.validity for one in verdicts(folder)] == [VALID] * 3
    (folder / name).unlink()
    found = verdicts(folder)
    assert tuple(one.validity for one in found) == expected
    assert found[0].reason == f"{name} is missing"


def test_all_experts_of_a_layer_that_the_older_step_has_are_missed(tmp_path: Path) -> None:
    write_experts(tmp_path, 3)
    folder = write_experts(tmp_path, 4)
    for path in folder.glob("layer_1_*"):
        path.unlink()
    found = check(folder, Level.NAMES)
    assert (found.validity, found.faults) == (INCOMPLETE, 4)


def test_an_expert_in_the_middle_is_missed_without_an_older_step(tmp_path: Path) -> None:
    folder = write_experts(tmp_path, 4, zero=True)
    assert check(folder, Level.CONTENT).level is Level.CONTENT
    (folder / "layer_0_expert_1_mp_rank_00_model_states.pt").unlink()
    assert check(folder, Level.NAMES).reason == "layer_0_expert_1_mp_rank_00_model_states.pt is missing"


@pytest.mark.parametrize("slices", [0, 2])
def test_a_layer_of_a_pipeline_that_the_older_step_has_is_missed(slices: int, tmp_path: Path) -> None:
    write_pipeline(tmp_path, 3, slices=slices)
    folder = write_pipeline(tmp_path, 4, slices=slices)
    assert [one.validity for one in verdicts(folder)] == [VALID] * 3
    lost = sorted(path.name for path in folder.glob("layer_03*"))
    for name in lost:
        (folder / name).unlink()
    found = check(folder, Level.NAMES)
    assert (found.validity, sorted(one.name for one in found.pieces)) == (INCOMPLETE, lost)


def test_a_slice_of_a_layer_is_missed_without_an_older_step(tmp_path: Path) -> None:
    folder = write_pipeline(tmp_path, 4)
    (folder / "layer_03-model_01-model_states.pt").unlink()
    assert check(folder, Level.NAMES).reason == "layer_03-model_01-model_states.pt is missing"


def test_what_lies_on_nvme_is_there_for_each_rank(tmp_path: Path) -> None:
    folder = write_zero(tmp_path, 4, data_ranks=3)
    for rank in range(3):
        (folder / f"offloaded_tensors/rank{rank:02d}").mkdir(parents=True)
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.level) == (VALID, Level.STRUCTURE)
    assert found.reason == "offloaded_tensors: the format has no checksum"
    (folder / "offloaded_tensors/rank02").rmdir()
    assert check(folder, Level.NAMES).reason == "offloaded_tensors/rank02 is missing"


def test_high_ranks_tell_of_a_thousand_others(tmp_path: Path) -> None:
    folder = tmp_path / "global_step4"
    (folder / "offloaded_tensors" / "rank999999").mkdir(parents=True)
    (folder / "mp_rank_999999_model_states.pt").write_bytes(b"")
    (folder / "zero_pp_rank_999999_mp_rank_00_optim_states.pt").write_bytes(b"")
    tracemalloc.start()
    faults = check(folder, Level.STRUCTURE).faults
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert faults == 2 + 1000 + 1000  # what is empty, files, folders
    assert peak_bytes < 4_000_000


UNIVERSAL: list[tuple[str, Damage, Verdicts, str]] = [
    ("whole", lambda _: None, ALL_VALID, ""),
    ("no weights", remove("zero/w/fp32.pt"), GAP, "zero/w/fp32.pt is missing"),
    ("no parameter", remove("zero/w"), GAP, "zero/w is missing"),
    ("no optimizer", remove("zero/optimizer_state.pt"), ALL_INCOMPLETE, "zero/optimizer_state.pt is missing"),
    ("no model", remove(MODEL), ALL_INCOMPLETE, f"{MODEL} is missing"),
    ("weights cut to half", cut("zero/w/fp32.pt", lambda n: n // 2), AT_STRUCTURE, "zero/w/fp32.pt"),
    ("state cut to 0", cut("zero/w/exp_avg.pt", lambda n: 0), AT_STRUCTURE, "zero/w/exp_avg.pt"),
    ("bit of the weights", flip("zero/w/fp32.pt", lambda n: n // 2), AT_CONTENT, "zero/w/fp32.pt: 'archive/data/0'"),
    ("optimizer cut to 1", cut("zero/optimizer_state.pt", lambda n: 1), AT_STRUCTURE, "zero/optimizer_state.pt"),
]


@pytest.mark.parametrize(
    ("damage", "expected", "word"), [row[1:] for row in UNIVERSAL], ids=[row[0] for row in UNIVERSAL]
)
def test_the_universal_layout(damage: Damage, expected: Verdicts, word: str, tmp_path: Path) -> None:
    folder = write_universal(tmp_path, 4)
    damage(folder)
    found = verdicts(folder)
    assert tuple(one.validity for one in found) == expected, [one.reason for one in found]
    assert word in found[-1].reason
    assert all(one.ranks is None for one in found)
    same_level(found)


def test_a_conversion_that_did_not_end(tmp_path: Path) -> None:
    folder = write_universal(tmp_path, 4)
    (folder / MODEL).unlink()
    assert not check(folder, Level.NAMES).uncommitted
    (tmp_path / "latest_universal").unlink()
    assert check(folder, Level.NAMES).uncommitted


@pytest.mark.parametrize(
    ("pointer", "expected"),
    [(None, True), ("global_step3", True), ("global_step3\n", True), ("global_step4", False), ("global_step5", False),
     ("", False), ("best", False), ("\udcff", False)],
)  # fmt: skip
def test_a_save_was_never_finished_if_the_pointer_did_not_come_to_it(
    pointer: str | None, expected: bool, tmp_path: Path
) -> None:
    folder = write_zero(tmp_path, 4)
    latest = tmp_path / "latest"
    latest.unlink() if pointer is None else latest.write_bytes(pointer.encode("utf-8", "surrogateescape"))
    assert not check(folder, Level.NAMES).uncommitted
    (folder / MODEL).unlink()
    assert check(folder, Level.NAMES).uncommitted is expected


def test_a_pointer_that_is_older_is_no_fault(tmp_path: Path) -> None:
    """The writer was killed between the step and its pointer."""
    folder = write_zero(tmp_path, 4)
    (tmp_path / "latest").write_text("global_step2")
    assert check(folder, Level.CONTENT).level is Level.CONTENT


def test_each_node_wrote_to_its_own_disk(tmp_path: Path) -> None:
    """LLaMA-Factory#8098: here is only what the second node's ranks wrote."""
    folder = write_zero(tmp_path, 4, data_ranks=RANKS)
    for rank in (0, 1):
        (folder / part(rank)).unlink()
    (folder / MODEL).unlink()
    found = check(folder, Level.NAMES)
    assert (found.validity, {one.name for one in found.pieces}) == (INCOMPLETE, {part(0), part(1), MODEL})


@pytest.mark.parametrize(
    ("name", "step"),
    [("global_step4", 4), ("global_step0", 0), ("global_step", None), ("global_step4_universal", None),
     ("global_step_4", None), ("step-4", None), ("xglobal_step4", None), ("global_step4.tmp", None), ("latest", None),
     ("global_step" + "9" * 19, None)],
)  # fmt: skip
def test_names(name: str, step: int | None) -> None:
    assert deepspeed.FORMAT.step_named(name) == step


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda folder: None, True),
        (put("mp_rank_00_model_states.pt", b""), True),
        (put("bf16_zero_pp_rank_7_mp_rank_01_optim_states.pt", b""), True),
        (put("layer_00-model_00-model_states.pt", b""), True),
        (put("layer_0_expert_0_mp_rank_00_model_states.pt", b""), True),
        (lambda folder: (folder / "offloaded_tensors").mkdir(), True),
        (put("model.safetensors", b""), False),
        (put(".metadata", b""), False),
        (put("trainer_state.json", b""), False),
        (put("mp_rank_00_model_states.pt.tmp", b""), False),
        (lambda folder: (folder / "mp_rank_00").mkdir(), False),
    ],
)
def test_what_is_recognised(make: Callable[[Path], object], expected: bool, tmp_path: Path) -> None:
    folder = tmp_path / "global_step4"
    folder.mkdir()
    make(folder)
    assert deepspeed.FORMAT.recognise(look_at(folder)) is expected


def test_a_file_and_an_empty_folder_of_another_name_are_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "global_step4").touch()
    assert not deepspeed.FORMAT.recognise(look_at(tmp_path / "best"))
    assert not deepspeed.FORMAT.recognise(look_at(tmp_path / "global_step4"))


def test_an_empty_folder_is_a_save_that_had_only_begun(tmp_path: Path) -> None:
    (tmp_path / "global_step4").mkdir()
    found = verdicts(tmp_path / "global_step4")
    assert [(one.validity, one.reason, one.uncommitted) for one in found] == [
        (INCOMPLETE, f"{MODEL} is missing", True)
    ] * 3


@pytest.mark.parametrize(("stage", "step"), [(1, 120), (3, 7)])
def test_a_folder_that_its_user_named_has_the_step_inside(stage: int, step: int, tmp_path: Path) -> None:
    write_zero(tmp_path, step, stage=stage, name="best")
    assert survey(LocalStorage(), tmp_path, known.AUTO).entries == (Entry("best", step),)
    (tmp_path / "best" / "more").mkdir()
    for path in (tmp_path / "best").glob("*model_states.pt"):
        path.write_bytes(b"PK")
    assert survey(LocalStorage(), tmp_path, known.AUTO).entries == (Entry("best", 0),)


def test_missing_names_what_it_would_take() -> None:
    found, nothing = shards_of(["zero_pp_rank_0_mp_rank_00optim_states.pt", MODEL]), shards_of([])
    assert list(missing(found, nothing, 2, 1)) == ["zero_pp_rank_1_mp_rank_00optim_states.pt"]
    assert list(missing(nothing, nothing, 0, 0)) == [MODEL]
    older = shards_of([part(0, kind="model"), f"bf16_{FIRST}"])
    assert list(missing(nothing, older, 1, 1)) == [f"bf16_{FIRST}", part(0, kind="model")]
