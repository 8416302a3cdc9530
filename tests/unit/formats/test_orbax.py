"""Every way in which an Orbax checkpoint is known to break, and what each level says about it."""

from __future__ import annotations

import errno
import os
import tempfile
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleetctl.checkpoint import ocdbt
from fleetctl.checkpoint.examine import examine
from fleetctl.checkpoint.formats import orbax
from fleetctl.checkpoint.look import Ledger, Look
from fleetctl.checkpoint.model import Checked, Entry, Level, Validity
from fleetctl.checkpoint.storage import LocalStorage
from fleetctl.checkpoint.survey import survey
from tests.formats.damage import Damage, cut, flip, instead, move, put, remove, zeros
from tests.formats.orbax import (
    LEAF,
    MANIFEST_MAGIC,
    NODE_MAGIC,
    OTHER_LEAF,
    ROOT,
    VALUES,
    inner,
    leaf,
    manifest,
    number,
    packed,
    table,
    write_metadata,
    write_orbax,
)

VALID, INCOMPLETE, CORRUPT, UNKNOWN = Validity.VALID, Validity.INCOMPLETE, Validity.CORRUPT, Validity.UNKNOWN
META, DONE, ITEM, TREE_NAME = "_CHECKPOINT_METADATA", "commit_success.txt", "default", "_METADATA"
MANIFEST, TREE = f"{ITEM}/manifest.ocdbt", f"{ITEM}/{TREE_NAME}"
PROCESS_0, PROCESS_1 = f"{ITEM}/ocdbt.process_0", f"{ITEM}/ocdbt.process_1"
DATA, FIRST, SECOND, TOP = f"{ITEM}/{VALUES[0]}", f"{ITEM}/{LEAF}", f"{ITEM}/{OTHER_LEAF}", f"{ITEM}/{ROOT}"


def check(folder: Path, level: Level) -> Checked:
    return examine(LocalStorage(), folder.parent, Entry(folder.name, 0), level, wanted="orbax")


def recognised(folder: Path) -> bool:
    return orbax.recognise(Look(LocalStorage(), folder.parent, (folder.name,), Ledger(lambda _: None)))


def says(**words: object) -> Damage:
    return lambda folder: write_metadata(folder, **words)


def handled(**handlers: str) -> Damage:
    return says(item_handlers=handlers)


def array(raw: bytes) -> Damage:
    return put("arrays/m/.zarray", raw)


def copy(name: str, to: str) -> Damage:
    return lambda folder: (folder / to).write_bytes((folder / name).read_bytes())


def under(body: bytes) -> Damage:
    """A whole database whose root is a node with this body, not packed."""
    return node(packed(NODE_MAGIC, body, zstd=False))


def node(raw: bytes) -> Damage:
    def damage(folder: Path) -> None:
        (folder / TOP).write_bytes(raw)
        (folder / MANIFEST).write_bytes(manifest(ROOT, 0, len(raw)))

    return damage


def both(*damages: Damage) -> Damage:
    def damage(folder: Path) -> None:
        for one in damages:
            one(folder)

    return damage


def linked(name: str) -> Damage:
    return both(remove(name), lambda folder: (folder / name).symlink_to(tempfile.gettempdir()))


def node_of(children: int, size: int = 1) -> Damage:
    """A root that has so many nodes below it, of so many bytes, each at another place of one file."""
    return under(inner([("", LEAF)], [("", (0, place, size)) for place in range(children)]))


MANY = put(MANIFEST, manifest(ROOT, 0, 1, kind=1))  # a manifest that refers to others
BOMB = b"\x28\xb5\x2f\xfd\x00\x50" + (((1 << 17) << 3 | 2).to_bytes(3, "little") + b"\0") * 200 + b"\1\0\0"
N_V, V_N = (INCOMPLETE,) * 3, (VALID,) * 3
S_I, S_C, N_C = (VALID, INCOMPLETE, INCOMPLETE), (VALID, CORRUPT, CORRUPT), (CORRUPT,) * 3
# damage -> what NAMES, STRUCTURE and CONTENT say, a word of the reason. CONTENT can never be passed
DAMAGES: list[tuple[str, Damage, tuple[Validity, Validity, Validity], str]] = [
    ("values cut to 0", cut(DATA, lambda n: 0), S_C, "has 0 bytes, and 3000 are needed"),
    ("values cut to 1", cut(DATA, lambda n: 1), S_C, "has 1 bytes"),
    ("values cut to half", cut(DATA, lambda n: n // 2), S_C, "has 1500 bytes"),
    ("values short of 1", cut(DATA, lambda n: n - 1), S_C, "has 2999 bytes"),
    ("values with a tail", cut(DATA, lambda n: n + 1), V_N, ""),  # a database may hold what nobody needs
    ("no values", remove(DATA), S_I, f"{DATA} is missing"),
    ("values of a process gone", remove(PROCESS_1), S_I, f"{ITEM}/{VALUES[1]} is missing"),
    ("bit of the values", flip(DATA, lambda n: n - 5), V_N, ""),  # nothing carries their checksum
    ("hole in the values", zeros(DATA, lambda n: 100, lambda n: 500), V_N, ""),
    ("root cut to 0", cut(TOP, lambda n: 0), S_C, "has 0 bytes"),
    ("root short of 1", cut(TOP, lambda n: n - 1), S_C, "are needed"),
    ("root gone", remove(TOP), S_I, f"{TOP} is missing"),
    ("bit of the root", flip(TOP, lambda n: n // 2), S_C, "CRC-32C"),
    ("bit of the root's magic", flip(TOP, lambda n: 0), S_C, "starts with"),
    ("bit of the root's length", flip(TOP, lambda n: 4), S_C, "says that it has"),
    ("hole in the root", zeros(TOP, lambda n: 20, lambda n: 20), S_C, "CRC-32C"),
    ("bit of a leaf", flip(FIRST, lambda n: n - 9), S_C, "CRC-32C"),
    ("bit of a leaf that is not packed", flip(SECOND, lambda n: n - 9), S_C, "CRC-32C"),
    ("leaf gone", remove(FIRST), S_I, f"{FIRST} is missing"),
    ("manifest cut to 0", cut(MANIFEST, lambda n: 0), S_C, "has 0 bytes"),
    ("manifest cut to 1", cut(MANIFEST, lambda n: 1), S_C, "has 1 bytes"),
    ("manifest cut to half", cut(MANIFEST, lambda n: n // 2), S_C, "says that it has"),
    ("manifest short of 1", cut(MANIFEST, lambda n: n - 1), S_C, "says that it has"),
    ("manifest with a tail", cut(MANIFEST, lambda n: n + 1), S_C, "says that it has"),
    ("bit of the manifest", flip(MANIFEST, lambda n: n // 2), S_C, "CRC-32C"),
    ("manifest all zeros", zeros(MANIFEST, lambda n: 0, lambda n: n), S_C, "starts with 00000000"),
    ("no manifest", remove(MANIFEST), N_V, "never put together"),
    ("no manifest and no processes", remove(MANIFEST, f"{ITEM}/d", PROCESS_0, PROCESS_1), S_I, MANIFEST),
    ("a huge manifest", cut(MANIFEST, lambda n: 1 << 30), S_C, "more than any"),
    ("manifest of one process gone", remove(f"{PROCESS_0}/manifest.ocdbt"), V_N, ""),
    ("no commit time", says(commit_timestamp_nsecs=None), S_I, "never finished"),
    ("a commit time that is none", says(commit_timestamp_nsecs="now"), S_C, "no time"),
    ("a commit time after all calendars", says(commit_timestamp_nsecs=10**30), S_C, "no time"),
    ("no metadata and no commit file", remove(META, DONE), N_V, f"{META} is missing"),
    ("metadata cut to 0", cut(META, lambda n: 0), S_C, "no JSON"),
    ("metadata cut to half", cut(META, lambda n: n // 2), S_C, "no JSON"),
    ("metadata of another kind", put(META, b"[]"), S_C, "no JSON object"),
    ("metadata that is deep", put(META, b"[" * 100_000), S_C, "no JSON"),
    ("huge metadata", cut(META, lambda n: 1 << 30), S_C, "more than"),
    ("no metadata, but the commit file", remove(META), V_N, ""),
    ("no commit file, as before 0.12.3", remove(DONE), V_N, ""),
    ("an item gone", remove("meta"), S_I, "meta is missing"),
    ("an item that was never finished", move(ITEM, f"{ITEM}.orbax-checkpoint-tmp"), N_V, "under way"),
    ("an item of another kind", handled(meta="x.StandardCheckpointHandler"), S_I, f"meta/{TREE_NAME} is missing"),
    ("handlers that are none", says(item_handlers=7), V_N, ""),
    ("a path upwards as item", handled(**{"../../etc": "x.ArrayCheckpointHandler"}), S_I, "../../etc is"),
    ("no tree", remove(TREE), N_V, f"{TREE} is missing"),
    ("tree cut to half", cut(TREE, lambda n: n // 2), S_C, "no JSON"),
    ("sharding cut to 0", cut("default/_sharding", lambda n: 0), S_C, "no JSON"),
    ("shapes cut to 0", cut("default/array_metadatas/process_0", lambda n: 0), S_C, "no JSON"),
    ("JSON item cut", cut("meta/metadata", lambda n: 3), S_C, "meta/metadata: no JSON"),
    ("JSON item empty", remove("meta/metadata"), S_I, "meta/metadata is missing"),
    ("zarr chunk gone", remove("arrays/m/1.0"), S_I, "arrays/m/1.0 is missing"),
    ("zarr chunk of 0 bytes", cut("arrays/m/1.0", lambda n: 0), S_C, "arrays/m/1.0 has 0 bytes"),
    ("zarr 3 chunk gone", remove("arrays/n/c/1/1"), S_I, "arrays/n/c/1/1 is missing"),
    ("zarr array gone", remove("arrays/m"), S_I, "arrays/m/.zarray is missing"),
    ("zarr 3 said nothing", remove("arrays/n/zarr.json"), S_I, "arrays/n/.zarray is missing"),
    ("zarr cut", cut("arrays/m/.zarray", lambda n: n // 2), S_C, "no JSON"),
    ("zarr of an endless shape", array(b'{"shape": [10000000000, 9], "chunks": [1, 1]}'), S_I, "is missing"),
    ("zarr of an endless shape without chunks", array(b'{"shape": [10000000000, 0], "chunks": [1, 1]}'), V_N, ""),
    ("zarr of a negative shape", array(b'{"shape": [-1, 9], "chunks": [1, 1]}'), S_C, "no shape"),
    ("zarr with chunks of 0", array(b'{"shape": [1, 9], "chunks": [0, 1]}'), S_C, "no shape"),
    ("zarr of two minds", array(b'{"shape": [1, 9], "chunks": [1]}'), S_C, "as many"),
    ("zarr with no separator", array(b'{"shape": [], "chunks": [], "dimension_separator": 1}'), S_C, "separator"),
    ("zarr 3 without a grid", put("arrays/n/zarr.json", b"{}"), S_C, "no chunk grid"),
    ("a tree without leaves", put("arrays/_METADATA", b"{}"), S_C, "no tree_metadata"),
    ("a leaf of nothing", put("arrays/_METADATA", b'{"tree_metadata": {"a": 1}}'), S_C, "a leaf"),
    ("somebody's file", put("README", b""), V_N, ""),
    ("a FIFO as values", instead(DATA, os.mkfifo), N_C, "is no file"),
    ("a FIFO as manifest", instead(MANIFEST, os.mkfifo), N_C, "is no file"),
    ("a FIFO as metadata", instead(META, os.mkfifo), N_C, "is no file"),
    ("a link as values", instead(DATA, lambda p: Path(p).symlink_to("x")), N_C, "is no file"),
    ("a link as metadata of JSON", instead("meta/metadata", lambda p: p.symlink_to(__file__)), S_C, "is no file"),
    ("a link as an item", linked("meta"), S_C, "meta is no file"),
    ("a link as manifest", instead(MANIFEST, lambda p: p.symlink_to("x")), N_C, "is no file"),
    ("a link as a process", linked(PROCESS_0), N_C, "is no file"),
    ("a link as zarr chunk", instead("arrays/n/c/1/1", lambda p: p.symlink_to("0")), N_C, "is no file"),
    ("somebody's link", lambda folder: (folder / "best").symlink_to(ITEM), V_N, ""),
    ("somebody's link in an item", lambda folder: (folder / ITEM / "notes").symlink_to("gone"), V_N, ""),
    ("somebody's FIFO", lambda folder: os.mkfifo(folder / "pipe"), V_N, ""),
    ("a folder as values", instead(DATA, lambda p: Path(p).mkdir()), S_I, "is missing"),
    ("a node of another file", copy(SECOND, FIRST), S_C, FIRST),
    ("a node with endless entries", under(b"\0" + table([]) + number(10**12)), S_C, "ends inside"),
    ("a number without an end", under(b"\0" + b"\xff" * 20), S_C, "without an end"),
    ("a file that is not named", under(inner([], [("b", (3, 0, 10))])), S_C, "does not name"),
    ("a path upwards in a node", under(leaf([("", "../../../etc/passwd")], [("k", (0, 0, 1))])), S_I, "passwd is"),
    ("a value beyond all files", under(leaf([("", VALUES[0])], [("k", (0, 2**60, 2**60))])), S_C, "are needed"),
    ("a node beyond all files", under(inner([("", LEAF)], [("b", (0, 2**62, 2**62))])), S_C, "are needed"),
    ("nodes beyond all", both(node_of(100_001), put(FIRST, b"x" * 200_000)), V_N, ""),  # not followed
    ("a root below itself", under(inner([("", ROOT)], [("b", (0, 0, 42))])), V_N, ""),
    ("not Zstandard", node(packed(NODE_MAGIC, b"x" * 20, zstd=False).replace(b"\0\0xx", b"\0\1xx")), S_C, "CRC-32C"),
    ("an empty database", put(MANIFEST, manifest(ROOT, 2**64 - 1, 2**64 - 1)), V_N, ""),
    ("a manifest in many files", MANY, V_N, ""),  # not followed
    ("the same, and values of 0", both(MANY, cut(TOP, lambda n: 0)), S_C, "has 0 bytes"),
    ("a newer manifest", put(MANIFEST, packed(MANIFEST_MAGIC, b"?", version=1)), V_N, ""),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "expected", "word"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_damage(damage: Damage, expected: tuple[Validity, ...], word: str, tmp_path: Path) -> None:
    folder = write_orbax(tmp_path)
    damage(folder)
    for level, validity in zip(Level, expected, strict=True):
        found = check(folder, level)
        assert found.validity is validity, (level, found.reason)
        passed = [one for one, said in zip(Level, expected, strict=True) if said is VALID and one <= level]
        assert found.level == min(max(passed), Level.STRUCTURE) if passed else found.level is None
        assert found.format == "orbax"
        assert found.reason.isprintable()
        if validity is not VALID:
            assert word in found.reason


@pytest.mark.parametrize("level", list(Level))
def test_a_whole_one_is_valid_as_far_as_it_can_be_told(level: Level, tmp_path: Path) -> None:
    folder = write_orbax(tmp_path)
    found = check(folder, level)
    assert (found.validity, found.level, found.resumable) == (VALID, min(level, Level.STRUCTURE), True)
    assert (found.uncommitted, found.ranks) == (False, None)
    if level > Level.NAMES:
        assert found.saved_at == datetime(2026, 1, 1, tzinfo=UTC)
        assert found.size_bytes == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        assert found.deepest is Level.STRUCTURE
        assert ("no checksum" in found.reason) == (level is Level.CONTENT)


def test_the_data_is_never_read(tmp_path: Path) -> None:
    folder = write_orbax(tmp_path)
    os.truncate(folder / DATA, 50_000_000)
    assert check(folder, Level.NAMES).bytes_read == 0
    assert 0 < check(folder, Level.CONTENT).bytes_read < 4_000


def test_every_fault_is_named(tmp_path: Path) -> None:
    folder = write_orbax(tmp_path)
    remove(DATA, FIRST, "arrays/m/0.0")(folder)
    cut("meta/metadata", lambda n: 1)(folder)
    flip(SECOND, lambda n: n - 9)(folder)
    found = check(folder, Level.STRUCTURE)
    assert {piece.name for piece in found.pieces} == {FIRST, SECOND, "arrays/m/0.0", "meta/metadata"}
    assert found.validity is CORRUPT


@pytest.mark.parametrize("name", ["120.orbax-checkpoint-tmp", "ckpt_120.orbax-checkpoint-tmp-1700000000"])
@pytest.mark.parametrize("level", list(Level))
def test_a_save_under_way_is_never_valid(name: str, level: Level, tmp_path: Path) -> None:
    folder = write_orbax(tmp_path, name)
    found = check(folder, level)
    assert (found.validity, found.uncommitted, found.level) == (INCOMPLETE, True, None)
    assert "under way" in found.reason


@pytest.mark.parametrize(
    "damage",
    [says(commit_timestamp_nsecs=None), remove(META, DONE), move(ITEM, f"{ITEM}.orbax-checkpoint-tmp-3")],
    ids=["no commit time", "no marker", "an item under way"],
)
def test_what_was_never_finished_is_uncommitted(damage: Damage, tmp_path: Path) -> None:
    folder = write_orbax(tmp_path)
    damage(folder)
    found = check(folder, Level.STRUCTURE)
    assert (found.validity, found.uncommitted) == (INCOMPLETE, True)


def test_what_lost_a_part_was_once_committed(tmp_path: Path) -> None:
    folder = write_orbax(tmp_path)
    remove(MANIFEST)(folder)
    found = check(folder, Level.STRUCTURE)
    assert (found.validity, found.uncommitted) == (INCOMPLETE, False)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("120", 120), ("00000120", 120), ("0", 0), ("120.orbax-checkpoint-tmp", 120),
        ("a_120.orbax-checkpoint-tmp", 120), ("120.orbax-checkpoint-tmp-99", 120),
        ("ckpt_120", None), ("120.pt", None), ("-1", None), ("", None), ("x.orbax-checkpoint-tmp", None),
        ("9" * 19, None), ("12\n", None), ("\u0661\u0662", None),
    ],
)  # fmt: skip
def test_a_step_from_a_name(name: str, step: int | None) -> None:
    assert orbax.step_named(name) == step


def test_a_prefix_of_its_users_choice(tmp_path: Path) -> None:
    for name in ("ckpt_120", "ckpt_80.orbax-checkpoint-tmp", "40"):
        write_orbax(tmp_path, name)
    (tmp_path / "notes_7").mkdir()
    (tmp_path / ".hidden").mkdir()
    found = survey(LocalStorage(), tmp_path, "auto")
    assert {entry.name: entry.training_step for entry in found.entries} == {
        "ckpt_120": 120,
        "ckpt_80.orbax-checkpoint-tmp": 80,
        "40": 40,
    }
    assert set(found.foreign) == {"notes_7", ".hidden"}


@pytest.mark.parametrize("left", ["default", "arrays", "meta"])
def test_one_that_is_half_deleted_is_recognised(left: str, tmp_path: Path) -> None:
    """By one item that is left; its markers have gone first."""
    folder = write_orbax(tmp_path)
    remove(META, DONE, *({"default", "arrays", "meta"} - {left}))(folder)
    assert recognised(folder)
    assert check(folder, Level.NAMES).validity is INCOMPLETE


@pytest.mark.parametrize(
    "names",
    [(), ("README",), (".metadata", "__0_0.distcp"), ("model.safetensors",), ("latest",), ("default/events.1",)],
    ids=str,
)
def test_what_is_none(names: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "120"
    folder.mkdir()
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")
    assert not recognised(folder)


def test_a_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "120").write_bytes(b"x")
    (tmp_path / "130").symlink_to(write_orbax(tmp_path, "140"))
    assert not recognised(tmp_path / "120")
    assert not recognised(tmp_path / "130")


def test_a_checkpoint_without_a_manager_has_its_arrays_beside_its_metadata(tmp_path: Path) -> None:
    folder = write_orbax(tmp_path)
    for path in (folder / ITEM).iterdir():
        path.replace(folder / path.name)
    remove(ITEM, "arrays", "meta")(folder)
    write_metadata(folder, item_handlers="x.StandardCheckpointHandler")
    assert check(folder, Level.CONTENT).level is Level.STRUCTURE
    remove(VALUES[1])(folder)
    assert check(folder, Level.STRUCTURE).reason == f"{VALUES[1]} is missing"


@pytest.mark.parametrize(("size", "most"), [(1, 1_010), (10_000, 95)])
def test_nodes_that_fail_cost_as_much_as_others(
    size: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_orbax(tmp_path)
    both(node_of(2_000, size), put(FIRST, bytes(20_000)))(folder)
    assert check(folder, Level.STRUCTURE).faults == 2_000
    monkeypatch.setattr(ocdbt, "_MOST_IN_ALL_BYTES", 1 << 20)
    assert 0.9 * most < check(folder, Level.STRUCTURE).faults <= most


def test_a_node_that_names_files_without_end_is_left_alone(tmp_path: Path) -> None:
    folder = write_orbax(tmp_path)
    under(bytes([1]) + table([("", "")] * 100_001) + bytes(9))(folder)
    found = check(folder, Level.CONTENT)
    assert (found.validity, found.reason.startswith(f"{MANIFEST} and")) == (VALID, True)  # not followed


@pytest.mark.parametrize(("most", "followed"), [(3, True), (2, False)])
def test_how_many_nodes_are_followed(
    most: int, followed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ocdbt, "_MOST_NAMED", most)
    found = check(write_orbax(tmp_path), Level.CONTENT)
    assert (found.validity, found.reason.startswith(f"{MANIFEST} and")) == (VALID, not followed)


def test_a_node_that_unpacks_to_gigabytes_is_left_alone(tmp_path: Path) -> None:
    folder = write_orbax(tmp_path)
    head = NODE_MAGIC + (len(BOMB) + 18).to_bytes(8, "little") + b"\0\1" + BOMB
    node(head + ocdbt.crc32c(head).to_bytes(4, "little"))(folder)
    tracemalloc.start()
    try:
        found = check(folder, Level.CONTENT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.validity is VALID  # nothing wrong was found, and what was not followed is named
    assert "manifest.ocdbt" in found.reason
    assert peak < 64 << 20


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_what_cannot_be_listed_is_unknown(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_orbax(tmp_path)

    def fail(self: LocalStorage, directory: Path, *inside: str) -> object:
        if inside[-1] == "d":
            raise OSError(number, os.strerror(number))
        return listed(self, directory, *inside)

    listed: Callable[..., object] = LocalStorage.look_all
    monkeypatch.setattr(LocalStorage, "look_all", fail)
    found = check(folder, Level.STRUCTURE)
    assert (found.validity, os.strerror(number) in found.reason) == (UNKNOWN, True)


def test_crc32c_is_castagnolis() -> None:
    assert ocdbt.crc32c(b"123456789") == 0xE3069283  # RFC 3720, and every table of CRCs
