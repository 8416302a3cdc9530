"""`checkpoint_N` of accelerate's `save_state`, or a folder of another name that it was told to save into.

Order of a save (accelerate 1.15, accelerator.py and checkpointing.py): models; optimizers; schedulers; samplers;
scaler.pt; a random_states for each rank; then the user's own objects. Nothing marks the end, and no rank waits for the
others. So what the save before this one has must be here, too. `N` counts saves, from 0: it is no training step, and
neither is the `step` in random_states, which counts batches of gradient accumulation and starts anew each epoch.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Set

from msgspec import Struct

from fleetctl.checkpoint.format import Facts, Format
from fleetctl.checkpoint.formats import dcp, deepspeed, torch, weights
from fleetctl.checkpoint.formats.weights import Inner, Parts
from fleetctl.checkpoint.inert import Map
from fleetctl.checkpoint.look import Look, moment
from fleetctl.checkpoint.model import Level
from fleetctl.checkpoint.storage import Kind

_NAMED = re.compile(r"checkpoint_(0|[1-9][0-9]{0,17})")
_RANDOM = re.compile(r"random_states_(0|[1-9][0-9]{0,8})\.pkl")
_FIRST_RANDOM = "random_states_0.pkl"
_CUSTOM = re.compile(r"custom_checkpoint_(0|[1-9][0-9]{0,8})\.pkl")
# The first one has no number, the second is _1. A dataloader may have no sampler of accelerate's
_NUMBERED = re.compile(r"(model|pytorch_model|optimizer|scheduler|sampler|dl_state_dict)(?:_([0-9]{1,9}))?\.(\w+)")
_WITHOUT_GAP = {"model": "safetensors", "pytorch_model": "bin", "optimizer": "bin", "scheduler": "bin"}
_TORCH_FILE = re.compile(
    r"(?:optimizer|scheduler|sampler|dl_state_dict)(?:_[0-9]+)?\.bin|scaler\.pt|optimizer_[0-9]+_rank[0-9]+\.bin"
    r"|random_states_[0-9]+\.pkl|custom_checkpoint_[0-9]+\.pkl"
)
_OF_A_RANK = re.compile(r"(.+_)rank(0|[1-9][0-9]{0,8})\.bin")  # FSDP without DCP: loaded by as many ranks as wrote it
_DCP_FOLDER = re.compile(r"(?:pytorch_model_fsdp|optimizer)_[0-9]+")
_DEEPSPEED_FOLDER = re.compile(r"pytorch_model(?:_[0-9]+)?")
_MAY_BE_WEIGHTS = (".bin", ".pt", ".pth")  # what a hook may call them; they are not looked at
_DEEPEST = 1  # a folder in a folder
_MEGATRON = "latest_checkpointed_iteration.txt"
_OTHERS = frozenset({"trainer_state.json", ".metadata"})


class _Seen(Struct, frozen=True):
    """What one listing tells: names by what they are."""

    files: frozenset[str]
    dcp: tuple[str, ...]
    deepspeed: tuple[str, ...]
    models: tuple[str, ...]  # folders that a hook of the user's has saved, as the scripts of diffusers do
    ranks: frozenset[int]

    @property
    def has_weights(self) -> bool:
        """Weights in any form."""
        inside = any(folder.startswith(weights.FSDP_MODEL) for folder in self.dcp)
        return inside or bool(self.deepspeed or self.models) or any(map(weights.is_weights, self.files))

    @property
    def has_optimizer(self) -> bool:
        """The state of an optimizer in any form."""
        inside = any(name.startswith("optimizer") for name in (*self.dcp, *self.files))
        return inside or bool(self.deepspeed)


def step_named(name: str) -> int | None:
    """As in checkpoint_3: the number of the save, which is all that the name says."""
    found = _NAMED.fullmatch(name)
    return None if found is None else int(found[1])


def recognise(look: Look) -> bool:
    """A folder with what only accelerate writes; one with its name and nothing of another format."""
    if look.kind() is not Kind.FOLDER:
        return False
    names = look.names()
    if names & _OTHERS:
        return False
    if any(map(_RANDOM.fullmatch, names)) or {"optimizer.bin", "scheduler.bin"} <= names:
        return True
    if step_named(look.name) is None:
        return False
    return not names or any(_is_own(name) for name in names)


def examine(look: Look, level: Level) -> Facts:
    """Its own files, and DeepSpeed's or FSDP's folders in it."""
    seen = _see(look)
    told = _tell_missing(look, seen)
    inner = [Inner(look.below(name), dcp.check_dcp) for name in seen.dcp]
    inner += [Inner(look.below(name), deepspeed.check_deepspeed) for name in seen.deepspeed]
    whole = weights.whole_by_names(inner)
    look.passed(Level.NAMES)
    parts = Parts()
    if level >= Level.STRUCTURE:
        _tell_lacking(look, seen, told)
        parts = _check_files(look, seen, told)
        parts = weights.joined([parts, *(weights.check_inner(one, level) for one in whole)])
        look.passed(Level.STRUCTURE)
    marker = look.children().get(_FIRST_RANDOM)
    return Facts(
        size_bytes=weights.size_of_files(look) + parts.size_bytes,
        saved_at=None if marker is None else moment(marker.modified_at_s),
        ranks=parts.ranks or (len(seen.ranks) if _split(seen.files) else None),
        uncommitted=marker is None,
        content=lambda: weights.content_of(parts),
        unproved=parts.unproved,
    )


def _is_own(name: str) -> bool:
    folder = _DCP_FOLDER.fullmatch(name) or _DEEPSPEED_FOLDER.fullmatch(name)
    return bool(folder or _TORCH_FILE.fullmatch(name)) or weights.is_weights(name)


def _see(look: Look) -> _Seen:
    found = look.children()
    folders = sorted(name for name, one in found.items() if one.kind is Kind.FOLDER)
    files = frozenset(found).difference(folders)
    return _Seen(
        files=files,
        dcp=tuple(name for name in folders if _DCP_FOLDER.fullmatch(name)),
        deepspeed=tuple(name for name in folders if _DEEPSPEED_FOLDER.fullmatch(name)),
        models=tuple(model for name in folders if _may_be_model(name) for model in _models(look, name, _DEEPEST)),
        ranks=frozenset(int(rank[1]) for rank in map(_RANDOM.fullmatch, files) if rank is not None),
    )


def _may_be_model(name: str) -> bool:
    return not (name.startswith(".") or _DCP_FOLDER.fullmatch(name) or _DEEPSPEED_FOLDER.fullmatch(name))


def _models(look: Look, name: str, deeper: int) -> Iterator[str]:
    """This folder if it holds weights, and those in it that do: PEFT has one for each adapter."""
    found = look.below(name).children()
    if any(weights.is_weights(one) or one.endswith(_MAY_BE_WEIGHTS) for one in found):
        yield name
    inside = sorted(one for one, what in found.items() if what.kind is Kind.FOLDER) if deeper else []
    for one in inside:
        if not one.startswith("."):
            yield from _models(look, f"{name}/{one}", deeper - 1)


def _tell_missing(look: Look, seen: _Seen) -> frozenset[str]:
    told = weights.tell_missing_weights(look, seen.files)
    lacking = {
        "model.safetensors": not seen.has_weights,
        "optimizer.bin": not seen.has_optimizer,
        _FIRST_RANDOM: 0 not in seen.ranks,
        "latest": bool(seen.deepspeed) and "latest" not in seen.files,
    }
    missing = frozenset(name for name, missing in lacking.items() if missing)
    for name in sorted(missing - told):
        look.missing(name)
    return told | missing


def _tell_lacking(look: Look, seen: _Seen, told: Set[str]) -> None:
    """Gaps in what is numbered, and what the save before this one has."""
    before = weights.previous(look)
    there = seen.files | set(seen.dcp)
    lacking = {name for name in before if _counts(name)} - {"optimizer.bin"}  # may be of another kind now, see above
    lacking |= set(_gaps(look, seen.files))
    for name in sorted(lacking - there - told):
        look.missing(name)
    ranks = len(seen.ranks)
    if ranks != look.ranks:
        ranks = max(ranks, sum(1 for name in before if _RANDOM.fullmatch(name)) or look.ranks or 0)
    weights.tell_missing_numbers(look, seen.ranks | {0}, lambda rank: f"random_states_{rank}.pkl", ranks)
    for prefix, have in _split(seen.files).items():
        weights.tell_missing_numbers(look, have, functools.partial("{}rank{}.bin".format, prefix), ranks)


def _counts(name: str) -> bool:
    """Whether a save with this file is followed by saves with it."""
    one = _NUMBERED.fullmatch(name)
    if one is not None and one[1] in ("model", "pytorch_model"):
        return one[2] is not None  # the first one may be of another kind, or in shards
    if _DCP_FOLDER.fullmatch(name):
        return True
    return _TORCH_FILE.fullmatch(name) is not None and not _RANDOM.fullmatch(name)


def _gaps(look: Look, files: Iterable[str]) -> Iterator[str]:
    """What a higher number tells of. Only the second of a kind has a number, 1."""
    numbers = dict[str, set[int]]()
    for one in filter(None, map(_NUMBERED.fullmatch, files)):
        number = int(one[2] or 0)
        if _WITHOUT_GAP.get(one[1]) == one[3] and _name_of(one[1], number) == one[0]:
            numbers.setdefault(one[1], set()).add(number)
    for kind, have in sorted(numbers.items()):
        yield from weights.lacking_numbers(look, have, functools.partial(_name_of, kind))
    custom = {int(one[1]) for one in map(_CUSTOM.fullmatch, files) if one is not None}
    yield from weights.lacking_numbers(look, custom, "custom_checkpoint_{}.pkl".format)


def _name_of(kind: str, number: int) -> str:
    return f"{kind}_{number}.{_WITHOUT_GAP[kind]}" if number else f"{kind}.{_WITHOUT_GAP[kind]}"


def _split(files: Iterable[str]) -> dict[str, set[int]]:
    """What each rank has written a part of, and which ranks have."""
    found = dict[str, set[int]]()
    for one in filter(None, map(_OF_A_RANK.fullmatch, files)):
        found.setdefault(one[1], set()).add(int(one[2]))
    return found


def _check_files(look: Look, seen: _Seen, told: Set[str]) -> Parts:
    known = [name for name in seen.files if weights.is_weights(name) or _TORCH_FILE.fullmatch(name)]
    parts = [weights.check_files(look, known, told)]
    _check_steps(look, seen)
    if seen.has_optimizer and 0 in seen.ranks:
        first = sorted(filter(weights.is_weights, seen.files))
        weights.tell_overwritten(look, first, ("optimizer.bin", "scheduler.bin"), _FIRST_RANDOM)
    for name in seen.models:
        folder = look.below(name)
        parts += [weights.check_files(folder, filter(weights.is_weights, folder.names()))]
        parts += [Parts(size_bytes=weights.size_of_files(folder))]
    if _MEGATRON in seen.files:
        look.unread(_MEGATRON, "is of Megatron-LM, which is not looked at inside accelerate's")
    return weights.joined(parts)


def _check_steps(look: Look, seen: _Seen) -> None:
    """Ranks of one save have counted the same batches. A pickle that cannot be read tells nothing here."""
    aside = look.beside(look.name)
    said = dict[int, int]()
    for rank in sorted(seen.ranks):
        name = f"random_states_{rank}.pkl"
        found = torch.check_torch_file(aside, name)
        value = None if found is None else torch.pickle_of(aside, name, found)
        step = value.get("step") if isinstance(value, Map) else None
        if type(step) is int:
            said[rank] = step
    for rank, step in said.items():
        if step != said.get(0, step):
            look.wrong(f"random_states_{rank}.pkl", f"is of batch {step}, that of rank 0 of batch {said[0]}")


FORMAT = Format(name="accelerate", step_named=step_named, recognise=recognise, examine=examine)
