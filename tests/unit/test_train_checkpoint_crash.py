"""Whenever the machine dies: a committed name is whole, and an earlier checkpoint is untouched.

The calls of real saves are recorded. Every prefix of them is one moment of a crash; what is then on disk is not one
state but many: a change of a folder's names may have reached the disk or not until that folder was synced, and so may
any part of a file's data. Each of these states is made on a real folder and judged by a small checker of its own.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fleetctl.train import layout
from fleetctl.train.checkpointer import Checkpointer
from fleetctl.train.disk import Disk

Call = tuple[Any, ...]
LAST_CHANGES = 6
STEPS = (1, 2, 3)
FULL_DISK_AT = 2  # with one shard, the first try of this step meets a full disk


class Recorder:
    """Does what `os` does, and remembers what changed or was synced."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.full = False
        self._open: dict[int, str] = {}

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        file = os.open(path, flags, mode)
        self._open[file] = path
        if flags & os.O_CREAT:
            self.calls.append(("create", path))
        return file

    def write(self, file: int, data: memoryview) -> int:
        if self.full and len(data) > 200:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = os.write(file, data[: max(len(data) // 2, 1)])  # as it may be, in pieces
        self.calls.append(("write", self._open[file], bytes(data[:count])))
        return count

    def fsync(self, file: int) -> None:
        os.fsync(file)
        kind = "syncdir" if os.path.isdir(self._open[file]) else "fsync"
        self.calls.append((kind, self._open[file]))

    def close(self, file: int) -> None:
        os.close(file)

    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(path, mode)
        self.calls.append(("mkdir", path))

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)
        self.calls.append(("rename", old, new))

    def unlink(self, path: str) -> None:
        os.unlink(path)
        self.calls.append(("unlink", path))

    def rmdir(self, path: str) -> None:
        os.rmdir(path)
        self.calls.append(("unlink", path))


@dataclass(eq=False)
class Node:
    """A file or a folder: as programs see it, and what a sync has made certain."""

    folder: bool
    data: bytes = b""
    synced: bytes | None = None  # of a file: its data at the last sync
    names: dict[str, Node] = field(default_factory=dict)
    certain: dict[str, Node] = field(default_factory=dict)


Edit = tuple[Node, str, Node | None]


class Model:
    """A file system that promises no more than POSIX and the sync of a folder do."""

    def __init__(self, root: Path) -> None:
        self._root, self.top = str(root), Node(folder=True)
        self.pending: list[list[Edit]] = []  # in order; each is whole or not at all, as a rename is

    def node(self, path: str) -> Node:
        node = self.top
        for name in Path(path).relative_to(self._root).parts:
            node = node.names[name]
        return node

    def apply(self, call: Call) -> None:
        kind, path = call[0], call[1]
        if kind in ("create", "mkdir"):
            self._change([(self.node(os.path.dirname(path)), os.path.basename(path), Node(folder=kind == "mkdir"))])
        elif kind == "write":
            self.node(path).data += call[2]
        elif kind == "fsync":
            self.node(path).synced = self.node(path).data
        elif kind == "unlink":
            self._change([(self.node(os.path.dirname(path)), os.path.basename(path), None)])
        elif kind == "rename":
            moved = self.node(path)
            gone = (self.node(os.path.dirname(path)), os.path.basename(path), None)
            self._change([gone, (self.node(os.path.dirname(call[2])), os.path.basename(call[2]), moved)])
        else:
            self._sync(self.node(path))

    def _change(self, edits: list[Edit]) -> None:
        for folder, name, node in edits:
            put(folder.names, name, node)
        self.pending.append(edits)

    def _sync(self, folder: Node) -> None:
        kept = []
        for edits in self.pending:
            if any(edit[0] is folder for edit in edits):
                for where, name, node in edits:
                    put(where.certain, name, node)
            else:
                kept.append(edits)
        self.pending = kept

    def after_a_crash(self) -> Iterator[dict[str, bytes | None]]:
        """The states in which the disk may be: path -> data, None for a folder.

        The last changes took place in every combination; those before, only of what was given up, all or none.
        """
        old = max(len(self.pending) - LAST_CHANGES, 0)
        for first, *rest in itertools.product((False, True), repeat=min(len(self.pending), LAST_CHANGES) + 1):
            chosen = [*[first] * old, *rest]
            if first and not old:
                break  # the same again
            names = {id(node): dict(node.certain) for node in self._folders()}
            for took_place, edits in zip(chosen, self.pending, strict=True):
                for folder, name, node in edits if took_place else ():
                    put(names.setdefault(id(folder), {}), name, node)
            states = [dict(self._tree(self.top, "", names, lost)) for lost in range(5)]
            yield from (state for i, state in enumerate(states) if state not in states[:i])

    def _folders(self) -> list[Node]:
        found, todo = [], [self.top, *(edit[2] for edits in self.pending for edit in edits if edit[2] is not None)]
        while todo:
            node = todo.pop()
            if node not in found:
                found.append(node)
                todo += [*node.names.values(), *node.certain.values()]
        return [node for node in found if node.folder]

    def _tree(
        self, folder: Node, path: str, names: dict[int, dict[str, Node]], lost: int
    ) -> Iterator[tuple[str, bytes | None]]:
        for name, node in names.get(id(folder), {}).items():
            yield f"{path}{name}", None if node.folder else torn(node, lost)
            if node.folder:
                yield from self._tree(node, f"{path}{name}/", names, lost)


def put(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def torn(node: Node, lost: int) -> bytes:
    """What may be on disk of data that was not synced since."""
    sure, data = node.synced or b"", node.data
    if node.synced == data:
        return data
    half = data[: (len(sure) + len(data)) // 2]
    zeros = sure + bytes(len(data) - len(sure))
    return (data, sure, half, zeros, half + bytes(len(data) - len(half)))[lost]


def payload(step: int, rank: int) -> dict[str, Any]:
    return {"raw": bytes([step, rank]) * 300, "step": step}


def accepted(states: dict[str, bytes | None], folder: str) -> dict[str, bytes]:
    """The shards of a committed checkpoint; AssertionError unless it is whole. Only layout.py is believed."""
    name = layout.parse_committed(folder)
    raw = states.get(f"ckpt/{folder}/{layout.MANIFEST}")
    assert raw is not None, "no manifest"
    manifest = layout.parse_manifest(raw)
    layout.check_agreement(manifest, name)
    shards = {}
    for file in manifest.files:
        data = states.get(f"ckpt/{folder}/{file.name}")
        assert data is not None, f"no {file.name}"
        assert len(data) == file.bytes, f"{file.name} has another size"
        assert file.digest == f"crc32:{zlib.crc32(data):08x}", f"{file.name} has another digest"
        length = layout.parse_prefix(data)
        parts = layout.parse_header(data[layout.PREFIX_BYTES : layout.PREFIX_BYTES + length])
        assert layout.shard_bytes(length, parts) == len(data)
        shards[file.name] = data[layout.PREFIX_BYTES + length :]
    return shards


def expected(step: int, shards: int) -> dict[str, bytes]:
    raw = {rank: payload(step, rank)["raw"] + json.dumps(step).encode() for rank in range(shards)}
    return {layout.shard_name(rank): data for rank, data in raw.items()}


def judge(states: dict[str, bytes | None], done: Sequence[int], shards: int) -> None:
    """The two promises: what has a committed name is whole; what was told to be committed is there."""
    committed = set()
    for path in states:
        if path.startswith("ckpt/step-") and path.count("/") == 1:
            name = path.partition("/")[2]
            step = layout.parse_committed(name).training_step
            assert accepted(states, name) == expected(step, shards)
            committed.add(step)
    assert set(done) <= committed, "a checkpoint that was committed is gone"


def recorded(folder: Path, shards: int) -> list[Call]:
    """The calls of three saves by all ranks, one of which first fails; ("done", step) where one is told committed."""
    recorder = Recorder()
    ranks = []
    for rank in range(shards):
        env = {"RANK": str(rank), "WORLD_SIZE": str(shards)}
        opened = Checkpointer(
            directory=str(folder / "ckpt"), shards=shards, environ=env, disk=Disk(recorder), commit_timeout_s=0
        )
        ranks.append(opened)
    for step in STEPS:
        for full in (True, False) if (shards, step) == (1, FULL_DISK_AT) else (False,):
            recorder.full = full
            for rank in reversed(range(shards)):  # rank 0 commits last
                ranks[rank].save(step, payload(step, rank), wait=True)
        recorder.calls.append(("done", step))
    for opened in ranks:
        opened.__exit__(None)
    return recorder.calls


def replay(calls: Sequence[Call], folder: Path, shards: int, after: int = 0) -> int:
    """Crash after every call behind the `after`-th save, in every way; how many states were judged."""
    model, done, count = Model(folder), list[int](), 0
    for call in [("syncdir", str(folder)), *calls]:
        if call[0] == "done":
            done.append(call[1])
        else:
            model.apply(call)
        for states in model.after_a_crash() if len(done) >= after else ():
            judge(states, done, shards)
            count += 1
    return count


@pytest.mark.parametrize("shards", [1, 2])
def test_every_crash_leaves_only_whole_checkpoints(tmp_path: Path, shards: int) -> None:
    calls = recorded(tmp_path, shards)
    assert sorted(path.name for path in (tmp_path / "ckpt").iterdir() if path.name.startswith("step-")) == [
        layout.committed_name(step, "local", "0.0") for step in STEPS
    ]
    assert replay(calls, tmp_path, shards) > 500


def test_the_reader_agrees_on_a_real_folder(tmp_path: Path) -> None:
    """A few of the states, made for real: a training loads the newest that was told committed, or a newer one."""
    (tmp_path / "recorded").mkdir()
    calls, model, done = recorded(tmp_path / "recorded", 1), Model(tmp_path / "recorded"), 0
    for number, call in enumerate([("syncdir", str(tmp_path / "recorded")), *calls]):
        done = call[1] if call[0] == "done" else done
        if call[0] != "done":
            model.apply(call)
        for which, states in enumerate(model.after_a_crash()):
            if which % 17 == number % 17:
                made = make(tmp_path / f"{number}-{which}", states)
                loaded = Checkpointer(directory=str(made / "ckpt"), environ={}).load()
                assert (loaded.training_step if loaded else 0) >= done
                assert loaded is None or loaded.state == payload(loaded.training_step, 0)


def make(folder: Path, states: dict[str, bytes | None]) -> Path:
    folder.mkdir()
    for path, data in states.items():
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)
    return folder


def without(kind: str, part: str, which: slice = slice(None)) -> Callable[[list[Call]], list[Call]]:
    """The calls without those of a kind on matching paths (of the last save only)."""

    def change(calls: list[Call]) -> list[Call]:
        last = calls.index(("done", STEPS[-2]))
        matching = [i for i in range(last, len(calls)) if calls[i][0] == kind and part in calls[i][1] + "$"][which]
        assert matching, "nothing was left out"
        return [call for i, call in enumerate(calls) if i not in matching]

    return change


def renamed_before_the_manifest(calls: list[Call]) -> list[Call]:
    rename = max(i for i, call in enumerate(calls) if call[0] == "rename")
    manifest = max(i for i, call in enumerate(calls) if call[0] == "create" and layout.MANIFEST in call[1])
    _, old, new = calls[rename]
    moved = [
        tuple(text.replace(old, new) if isinstance(text, str) else text for text in call)
        for call in calls[manifest:rename]
    ]
    return [*calls[:manifest], calls[rename], *moved, *calls[rename + 1 :]]


def overwritten_in_place(calls: list[Call]) -> list[Call]:
    committed = max(i for i, call in enumerate(calls) if call[0] == "rename")
    return [
        *calls[: committed + 1],
        ("write", f"{calls[committed][2]}/{layout.MANIFEST}", b"x"),
        *calls[committed + 1 :],
    ]


BROKEN: dict[str, Callable[[list[Call]], list[Call]]] = {
    "the shard is not synced": without("fsync", "shard-00000.bin"),
    "another rank's shard is not synced": without("fsync", "shard-00001.bin"),
    "the manifest is not synced": without("fsync", "manifest.json"),
    "the staging folder is not synced": without("syncdir", ".staging/step"),
    "the staging folder is not synced after the manifest": without("syncdir", ".staging/step", slice(-1, None)),
    "the checkpoint directory is not synced": without("syncdir", "/ckpt$"),
    "the rename comes before the manifest": renamed_before_the_manifest,
    "a committed file is written again": overwritten_in_place,
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_protocol_is_noticed(tmp_path: Path, change: Callable[[list[Call]], list[Call]]) -> None:
    calls = change(recorded(tmp_path, 2))
    with pytest.raises((AssertionError, ValueError)):
        replay(calls, tmp_path, 2, after=2)
