"""Is a checkpoint of PyTorch Lightning whole? One file of torch.save, or a folder of shards for FSDP and ModelParallel.

The file is written elsewhere (in the folder for temporary files) and moved to its name. Between two file systems that
is a copy under the final name, so it can be cut short like any other. The folder is a torch DCP with `meta.pt` beside
it, which rank 0 writes last. With the DeepSpeed strategy it is a folder, too, with a step of DeepSpeed's in it, always
called `checkpoint`, and its pointer `latest` (strategies/deepspeed.py, `save_checkpoint`). Keys: Lightning 2.6.6,
checkpoint_connector.py, `dump_checkpoint`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from msgspec import structs

from fleetctl.checkpoint import inert
from fleetctl.checkpoint.format import Facts, Format, Unit
from fleetctl.checkpoint.formats import dcp, deepspeed
from fleetctl.checkpoint.formats import torch as torch_file
from fleetctl.checkpoint.formats.deepspeed_names import shards_of
from fleetctl.checkpoint.look import Look, moment
from fleetctl.checkpoint.model import Level
from fleetctl.checkpoint.storage import Kind
from fleetctl.checkpoint.zips import Zip, has_crcs

META, DCP_METADATA = "meta.pt", ".metadata"
_DEEPSPEED, _LATEST = "checkpoint", "latest"
_VERSION = "pytorch-lightning_version"
_HEAD_BYTES = 64 << 10  # the first keys of a pickle, which is the first entry: the version is the third
_ENDING = ".ckpt"
# As ModelCheckpoint and its `{step}` make them; a version is added where the name is taken
_STEP = re.compile(r"(?:.+-)?step=([0-9]{1,18})(?:-.+)?\.ckpt", re.DOTALL)
_DEFAULT = re.compile(r"(?:epoch=[0-9]+-step=[0-9]+|hpc_ckpt_[0-9]+)(?:-v[0-9]+)?\.ckpt")
_LAST = re.compile(r"last(?:-v[0-9]+)?\.ckpt")
_SHARD = re.compile(r"__[0-9]+_[0-9]+\.distcp")
_PATHS = ("best_model_path", "last_model_path", "kth_best_model_path")  # of the state of ModelCheckpoint
_MOST_POINTER_BYTES = 4096  # a name
_COPY_SLACK_S = 2.0  # of the clocks of file systems


def step_named(name: str) -> int | None:
    """As in epoch=3-step=400.ckpt. hpc_ckpt_3.ckpt counts saves."""
    found = _STEP.fullmatch(name)
    return None if found is None else int(found[1])


def peek(look: Look) -> int | None:
    """The `global_step` inside."""
    if _is_deepspeed(look):
        return deepspeed.peek(look.below(_DEEPSPEED))
    return torch_file.peek(look.below(META) if look.kind() is Kind.FOLDER else look)


def recognise(look: Look) -> bool:
    """By the version that it says in its first bytes, by `meta.pt` beside shards, and torn ones by their names."""
    kind, name = look.kind(), look.name
    if kind is Kind.FOLDER:
        return _is_sharded(look) or _is_deepspeed(look)
    if kind is not Kind.FILE:
        return False
    with look.open() as blob:
        head = blob.read(0, min(_HEAD_BYTES, blob.size_bytes))
    if _VERSION.encode() in head or _DEFAULT.fullmatch(name):
        return True
    return _LAST.fullmatch(name) is not None and not torch_file.begins_as_torch(look)


def _is_sharded(look: Look) -> bool:
    names = look.names()
    shards = DCP_METADATA in names or any(map(_SHARD.fullmatch, names))
    if META in names and shards:
        return True
    named = look.name.endswith(_ENDING) if shards else _DEFAULT.fullmatch(look.name) or _LAST.fullmatch(look.name)
    others = names - {META, DCP_METADATA, f"{DCP_METADATA}.tmp"}
    # The DeepSpeed strategy has folders of these names, too
    return bool(named) and all(map(_SHARD.fullmatch, others))


def _is_deepspeed(look: Look) -> bool:
    """A folder with a step of DeepSpeed and its pointer; one of Lightning's suffix with either, or where a save ended
    right after it began. Fabric has folders of any name."""
    if look.kind() is not Kind.FOLDER or not (look.name.endswith(_ENDING) or _LATEST in look.names()):
        return False
    found = look.children().get(_DEEPSPEED)
    if found is None or found.kind is not Kind.FOLDER:
        return False
    names = look.below(_DEEPSPEED).names()
    return bool(shards_of(names).names) or (not names and look.name.endswith(_ENDING))


def examine(look: Look, level: Level) -> Facts:
    """The zip and the keys of the file, or the shards and `meta.pt`."""
    kind = look.kind()
    if kind is Kind.FOLDER:
        return _examine_deepspeed(look, level) if _is_deepspeed(look) else _examine_shards(look, level)
    if kind is not Kind.FILE:
        look.wrong("", "is no file")
        return Facts()
    saved_at = moment(look.ledger.touched_at_s)
    look.passed(Level.NAMES)
    zipped = torch_file.check_torch_file(look, "") if level >= Level.STRUCTURE else None
    if zipped is None:
        return Facts(saved_at=saved_at)
    keys = _keys(look, "", zipped)
    step = None if keys is None else _check_keys(look, keys, ("state_dict", "global_step", "epoch", _VERSION))
    _check_step(look, "", keys, step)
    with look.open() as blob:
        size_bytes = blob.size_bytes
    look.passed(Level.STRUCTURE)
    return Facts(
        training_step=step,
        size_bytes=size_bytes,
        saved_at=saved_at,
        resumable=keys is None or (keys.get("optimizer_states") is not None and keys.get("lr_schedulers") is not None),
        content=lambda: torch_file.units_of(look, "", zipped),
        unproved=() if has_crcs(zipped) else (look.name,),
    )


def _examine_shards(look: Look, level: Level) -> Facts:
    """Names first; then `meta.pt` before the shards, whose levels must not count where it is broken."""
    meta, keys, step = look.children().get(META), None, None
    zipped: Zip | None = None
    look.file_size(META)
    shards = dcp.check_dcp(look, Level.NAMES)
    if level >= Level.STRUCTURE and not look.ledger.faults:
        _check_age(look)
        zipped = torch_file.check_torch_file(look, META)
        keys = None if zipped is None else _keys(look, META, zipped)
        step = None if keys is None else _check_meta(look, keys)
        shards = dcp.check_dcp(look, level)
    return Facts(
        training_step=step,
        size_bytes=None if shards.size_bytes is None or meta is None else shards.size_bytes + meta.size_bytes,
        saved_at=None if meta is None else moment(meta.modified_at_s),
        resumable=keys is None or keys.get(_VERSION) is None or keys.get("lr_schedulers") is not None,
        uncommitted=meta is None or shards.uncommitted,
        content=lambda: _content(look, zipped, shards),
        unproved=(*(() if zipped is None or has_crcs(zipped) else (META,)), *shards.unproved),
    )


def _examine_deepspeed(look: Look, level: Level) -> Facts:
    """DeepSpeed will load what `latest` names, which it writes last."""
    there = look.file_size(_LATEST) is not None
    facts = deepspeed.check_deepspeed(look.below(_DEEPSPEED), level)
    if there and level >= Level.STRUCTURE:
        faults, ledger = look.ledger.faults, look.ledger
        with look.judging(_LATEST):
            raw = look.read_whole(_LATEST, _MOST_POINTER_BYTES)
            tag = None if raw is None else raw.decode("utf-8", "replace").strip()
            if tag not in (None, _DEEPSPEED):
                raise ValueError(f"names {tag!a}, not {_DEEPSPEED}")
        if ledger.faults > faults and ledger.passed is not None:
            ledger.passed = Level.NAMES
    unproved = tuple(f"{_DEEPSPEED}/{name}" for name in facts.unproved)
    return structs.replace(facts, uncommitted=_LATEST not in look.names(), unproved=unproved)


def _content(look: Look, zipped: Zip | None, shards: Facts) -> Iterator[Unit]:
    return itertools.chain(() if zipped is None else torch_file.units_of(look, META, zipped), shards.content())


def _check_meta(look: Look, keys: inert.Map) -> int | None:
    """Its training step. What says no version is whatever a user of Fabric put there."""
    step = _check_keys(look.below(META), keys, () if keys.get(_VERSION) is None else ("global_step", "epoch"))
    _check_step(look, META, keys, step)
    return step


def _check_age(look: Look) -> None:
    """`last.ckpt` is written over, and what a save leaves that was stopped before its `meta.pt` has the old one.

    A copy that keeps no times may look alike, so that it is not known what this is.
    """
    meta, shards = look.children()[META], look.children().get(DCP_METADATA)
    if step_named(look.name) is None and shards is not None:
        older_s = shards.modified_at_s - meta.modified_at_s
        if older_s > _COPY_SLACK_S:
            text = f"is {older_s:.0f} s older than {DCP_METADATA}, which is written before it"
            look.unread(META, f"{text}: saved over another, not to its end, or a copy that kept no times")


def _keys(look: Look, name: str, zipped: Zip) -> inert.Map | None:
    value = torch_file.pickle_of(look, name, zipped)
    if value is None or isinstance(value, inert.Map):
        return value
    look.wrong(name, "holds no dict")
    return None


def _check_keys(look: Look, keys: inert.Map, needed: tuple[str, ...]) -> int | None:
    """Its training step. `look` is at the file."""
    for key in needed:
        if keys.get(key) is None:
            look.wrong("", f"has no {key}")
    step = keys.get("global_step")
    if step is None:
        return None
    if type(step) is not int or step < 0:
        look.wrong("", "has a global_step that is no count")
        return None
    return step


def _check_step(look: Look, name: str, keys: inert.Map | None, step: int | None) -> None:
    """The step in its name must be the one inside, unless its writer named it so.

    A training that logs a value of its own as "step" has that one in the names.
    """
    named = step_named(look.name)
    if keys is not None and step is not None and named not in (None, step) and look.name not in _own_names(keys):
        look.wrong(name, f"is of step {step}, and its name says {named}")


def _own_names(keys: inert.Map) -> set[str]:
    """What ModelCheckpoint called the files that it had written, this one among them: it notes that before it saves."""
    states = keys.get("callbacks")
    found = set[object]()
    for _, state in states.items() if isinstance(states, inert.Map) else ():
        if isinstance(state, inert.Map):
            found.update(state.get(key) for key in _PATHS if type(state.get(key)) is str)
    return {path.rpartition("/")[2] for path in found if isinstance(path, str)}


FORMAT = Format(name="lightning", step_named=step_named, recognise=recognise, examine=examine, peek=peek)
