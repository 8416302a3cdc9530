"""`checkpoint-N` of the Trainer of transformers, with what DeepSpeed or FSDP put into it.

Order of a save (transformers 5.24, trainer.py `_save_checkpoint`): weights and training_args.bin; the optimizer, or
what DeepSpeed or FSDP save; scheduler.pt; scaler.pt; a rng_state for each rank; trainer_state.json. Rank 0 writes the
last one and waits for nobody: another rank's rng_state may still be missing then.

The Trainer starts with a new optimizer, and says nothing, where optimizer.pt or scheduler.pt is missing. So a missing
one is a fault here, but for checkpoints of `save_only_model`, which are nothing to go on from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Set

from msgspec import Struct

from fleetctl.checkpoint.format import Facts, Format, as_ranks, as_step
from fleetctl.checkpoint.formats import dcp, deepspeed, torch, weights
from fleetctl.checkpoint.formats.weights import Inner, Parts
from fleetctl.checkpoint.inert import Map, Stub
from fleetctl.checkpoint.look import Look, moment
from fleetctl.checkpoint.model import Level
from fleetctl.checkpoint.storage import Kind

_STATE, _ARGUMENTS, _OPTIMIZER, _SCHEDULER, _RNG = (
    "trainer_state.json", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth",
)  # fmt: skip
_MOST_STATE_BYTES = 64 << 20  # 200 bytes for each logged step, and more for each evaluation
_MOST_LATEST_BYTES = 4096
_NAMED = re.compile(r"checkpoint-(0|[1-9][0-9]{0,17})")
_RNG_OF_RANK = re.compile(r"rng_state_(0|[1-9][0-9]{0,8})\.pth")
_XLA_OPTIMIZER = re.compile(r"rank(0|[1-9][0-9]{0,8})-of-([1-9][0-9]{0,8})-optimizer\.pt")
_TORCH_FILE = re.compile(
    r"(?:optimizer|scheduler|scaler)\.pt|optimizer\.bin|training_args\.bin|rng_state(?:_[0-9]+)?\.pth"
    r"|rank[0-9]+-of-[0-9]+-optimizer\.pt"
)
_DCP_FOLDER = re.compile(r"(?:pytorch_model_fsdp|optimizer)_[0-9]+")
_DEEPSPEED_TAG = re.compile(r"global_step[0-9]+")
_ADAPTERS = frozenset({"adapter_model.safetensors", "adapter_model.bin"})
_OTHERS = re.compile(r"random_states_[0-9]+\.pkl|scheduler\.bin|sampler\.bin|custom_checkpoint_[0-9]+\.pkl|\.metadata")
_TORN_SIGNS = 2  # files of the Trainer that tell of it in a folder with another name, without its last file


class _Seen(Struct, frozen=True):
    """What one listing tells: names by what they are."""

    files: frozenset[str]
    dcp: tuple[str, ...]
    deepspeed: tuple[str, ...]
    adapters: tuple[str, ...]
    rng_ranks: frozenset[int]

    @property
    def has_weights(self) -> bool:
        """Weights in any form, DeepSpeed's own among them."""
        inside = any(folder.startswith(weights.FSDP_MODEL) for folder in self.dcp)
        return inside or bool(self.deepspeed or self.adapters) or any(map(weights.is_weights, self.files))

    @property
    def has_optimizer(self) -> bool:
        """The state of an optimizer in any form."""
        inside = any(folder.startswith("optimizer") for folder in self.dcp)
        xla = any(map(_XLA_OPTIMIZER.fullmatch, self.files))
        return inside or xla or bool(self.deepspeed or self.files & {_OPTIMIZER, "optimizer.bin"})

    @property
    def has_training_state(self) -> bool:
        """Anything that `save_only_model` leaves out."""
        return self.has_optimizer or bool(self.rng_ranks or self.files & {_SCHEDULER, _RNG, "scaler.pt"})


def step_named(name: str) -> int | None:
    """As in checkpoint-500."""
    found = _NAMED.fullmatch(name)
    return None if found is None else int(found[1])


def recognise(look: Look) -> bool:
    """A folder with its last file, or with its name and nothing of another format, or with what it writes alone."""
    if look.kind() is not Kind.FOLDER:
        return False
    names = look.names()
    if _STATE in names:
        return True
    if any(map(_OTHERS.fullmatch, names)):
        return False
    signs = sum(1 for name in names if _TORCH_FILE.fullmatch(name))
    if step_named(look.name) is None:
        return signs >= _TORN_SIGNS
    folders = any(_DCP_FOLDER.fullmatch(name) or _DEEPSPEED_TAG.fullmatch(name) for name in names)
    return not names or signs > 0 or folders or any(map(weights.is_weights, names))


def examine(look: Look, level: Level) -> Facts:
    """Its own files, and DeepSpeed's or FSDP's folders in it."""
    seen = _see(look)
    told = _tell_missing(look, seen)
    whole = weights.whole_by_names(_inner(look, seen))
    look.passed(Level.NAMES)
    resumable, parts, step = seen.has_training_state, Parts(), None
    if level >= Level.STRUCTURE:
        step = _check_state(look)
        _check_against_arguments(look, seen)
        _check_latest(look, seen)
        parts = _check_files(look, seen, told)
        parts = weights.joined([parts, *(weights.check_inner(one, level) for one in whole)])
        if seen.has_optimizer and _STATE in seen.files:
            later = (_OPTIMIZER, _SCHEDULER)
            weights.tell_overwritten(look, sorted(filter(weights.is_weights, seen.files)), later, _STATE)
        look.passed(Level.STRUCTURE)
    marker = look.children().get(_STATE)
    return Facts(
        training_step=step,
        size_bytes=weights.size_of_files(look) + parts.size_bytes,
        saved_at=None if marker is None else moment(marker.modified_at_s),
        ranks=parts.ranks,
        resumable=resumable,
        uncommitted=marker is None,
        content=lambda: weights.content_of(parts),
        unproved=parts.unproved,
    )


def peek(look: Look) -> int | None:
    """The step that its last file says. Of a folder with another name."""
    return _check_state(look) if look.kind() is Kind.FOLDER and _STATE in look.names() else None


def _see(look: Look) -> _Seen:
    found = look.children()
    folders = sorted(name for name, one in found.items() if one.kind is Kind.FOLDER)
    files = frozenset(found).difference(folders)
    plain = [name for name in folders if not (_DCP_FOLDER.fullmatch(name) or _DEEPSPEED_TAG.fullmatch(name))]
    return _Seen(
        files=files,
        dcp=tuple(name for name in folders if _DCP_FOLDER.fullmatch(name)),
        deepspeed=tuple(name for name in folders if _DEEPSPEED_TAG.fullmatch(name)),
        # Several adapters of PEFT have a folder each, named by the user
        adapters=tuple(name for name in plain if look.below(name).names() & _ADAPTERS),
        rng_ranks=frozenset(int(rank[1]) for rank in map(_RNG_OF_RANK.fullmatch, files) if rank is not None),
    )


def _tell_missing(look: Look, seen: _Seen) -> frozenset[str]:
    told = weights.tell_missing_weights(look, seen.files)
    lacking = {
        _STATE: _STATE not in seen.files,
        "model.safetensors": not seen.has_weights,
    }
    if seen.has_training_state:
        lacking[_OPTIMIZER] = not seen.has_optimizer
        # DeepSpeed keeps its own scheduler inside
        lacking[_SCHEDULER] = not seen.deepspeed and _SCHEDULER not in seen.files
        lacking[_RNG] = not seen.rng_ranks and _RNG not in seen.files
        lacking["latest"] = bool(seen.deepspeed) and "latest" not in seen.files
    for name in sorted(name for name, missing in lacking.items() if missing):
        look.missing(name)
    return told


def _check_state(look: Look) -> int | None:
    """The step in trainer_state.json, which the folder's name must say, too."""
    if _STATE not in look.names() or (raw := look.read_whole(_STATE, _MOST_STATE_BYTES)) is None:
        return None
    with look.judging(_STATE):
        try:
            said = json.loads(raw)  # not msgspec: a loss may be NaN
        except (ValueError, RecursionError):
            raise ValueError(": no JSON") from None
        step = as_step(said.get("global_step")) if isinstance(said, dict) else None
        if step is None:
            raise ValueError(": says no global_step")
        if (named := step_named(look.name)) not in (None, step):
            raise ValueError(f": is of step {step}, the folder of step {named}")
        return step
    return None


def _inner(look: Look, seen: _Seen) -> list[Inner]:
    inner = [Inner(look.below(name), dcp.check_dcp) for name in seen.dcp]
    return inner + [Inner(look.below(name), deepspeed.check_deepspeed) for name in seen.deepspeed]


def _check_files(look: Look, seen: _Seen, told: Set[str]) -> Parts:
    known = (name for name in seen.files if weights.is_weights(name) or _TORCH_FILE.fullmatch(name))
    parts = [weights.check_files(look, known, told)]
    for name in seen.adapters:
        folder = look.below(name)
        adapter = weights.check_files(folder, folder.names() & _ADAPTERS)
        parts += [adapter, Parts(size_bytes=weights.size_of_files(folder))]
    return weights.joined(parts)


def _check_latest(look: Look, seen: _Seen) -> None:
    """DeepSpeed will load what `latest` names."""
    if not seen.deepspeed or "latest" not in seen.files:
        return
    with look.judging("latest"):
        raw = look.read_whole("latest", _MOST_LATEST_BYTES)
        tag = None if raw is None else raw.decode("utf-8", "replace").strip()
        if tag is not None and tag not in seen.deepspeed:
            raise ValueError(f"names {tag!r}, which is not there")


def _check_against_arguments(look: Look, seen: _Seen) -> None:
    """What training_args.bin says of the save: whether only the model was wanted, and how many ranks there were."""
    arguments = _arguments(look, seen)
    if not seen.has_training_state and arguments.get("save_only_model") is False:
        look.missing(_OPTIMIZER, f"is missing, and {_ARGUMENTS} says that it was to be saved")
    state = arguments.get("distributed_state")
    told = state.state if isinstance(state, Stub) and isinstance(state.state, Map) else None
    ranks = None if told is None else as_ranks(told.get("num_processes"))
    if not seen.has_training_state:
        return
    if ranks is not None:
        _check_ranks(look, seen, ranks)
    elif seen.rng_ranks:
        _check_ranks(look, seen, _likely_ranks(look, seen))


def _check_ranks(look: Look, seen: _Seen, ranks: int) -> None:
    if ranks > 1:
        weights.tell_missing_numbers(look, seen.rng_ranks, lambda rank: f"rng_state_{rank}.pth", ranks)
    elif _RNG not in seen.files and seen.rng_ranks:
        look.missing(_RNG)


def _likely_ranks(look: Look, seen: _Seen) -> int:
    """As many as now, or as saved the one before."""
    have = len(seen.rng_ranks)
    if have == look.ranks:
        return have
    before = sum(1 for name in weights.previous(look) if _RNG_OF_RANK.fullmatch(name))
    return max(have, before or look.ranks or 0)


def _arguments(look: Look, seen: _Seen) -> Map:
    """The attributes of the TrainingArguments. Empty where they cannot be told: nobody needs them to go on."""
    if _ARGUMENTS not in seen.files:
        return Map()
    aside = look.beside(look.name)  # what is wrong with the file was told before
    found = torch.check_torch_file(aside, _ARGUMENTS)
    value = None if found is None else torch.pickle_of(aside, _ARGUMENTS, found)
    return value.state if isinstance(value, Stub) and isinstance(value.state, Map) else Map()


FORMAT = Format(name="huggingface", step_named=step_named, recognise=recognise, examine=examine, peek=peek)
