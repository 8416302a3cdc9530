"""Is a checkpoint of torchtitan whole? A folder `step-N` that is a torch DCP, or an export for Hugging Face.

torchtitan takes a folder for a checkpoint that has `.metadata` or `model.safetensors.index.json`
(torchtitan/components/checkpoint.py, `_find_load_step`). The second holds weights alone; so may the first, the last
one of a training (`last_save_model_only`).
"""

from __future__ import annotations

import re

from msgspec import structs

from fleetctl.checkpoint.format import Facts, Format
from fleetctl.checkpoint.formats import dcp, safetensors
from fleetctl.checkpoint.look import Look
from fleetctl.checkpoint.model import Level
from fleetctl.checkpoint.storage import Blob, Kind

_NAMED = re.compile(r"step-([0-9]{1,18})")
_INDEX = "model.safetensors.index.json"
_PARTS = "sharded"  # what the ranks wrote, before it is put together
_DCP_NAMES = re.compile(r"\.metadata(?:\.tmp)?|__[0-9]+\.metadata|__[0-9]+_[0-9]+\.distcp")
# Names of states beside the model's, as they stand in the pickle of `.metadata`: torchtitan has "optimizer",
# "train_state" and "lr_scheduler", and others who name their folders so call them alike
_MORE_THAN_WEIGHTS = re.compile(rb"optim|train_state|lr_scheduler")
_PIECE_BYTES = 1 << 20
_OVERLAP_BYTES = 32  # a word may lie across two pieces


def step_named(name: str) -> int | None:
    """As in step-500."""
    found = _NAMED.fullmatch(name)
    return None if found is None else int(found[1])


def recognise(look: Look) -> bool:
    """A folder of this name with nothing in it yet, or with files of either kind. Others use the name as well."""
    if step_named(look.name) is None or look.kind() is not Kind.FOLDER:
        return False
    names = look.names()
    return not names or _has_dcp(names) or _PARTS in names or any(map(_is_export, names))


def examine(look: Look, level: Level) -> Facts:
    """As either of the two formats that it is made of."""
    names, step = look.names(), step_named(look.name)
    if names and not _has_dcp(names):
        if not any(map(_is_export, names)):
            look.missing(_INDEX)
            return Facts(training_step=step, resumable=False, uncommitted=True)
        return structs.replace(safetensors.examine(look, level), training_step=step)
    facts = dcp.check_dcp(look, level)
    resumable = level < Level.STRUCTURE or look.ledger.faults > 0 or _is_more_than_weights(look)
    return structs.replace(facts, training_step=step, resumable=resumable)


def _has_dcp(names: frozenset[str]) -> bool:
    return any(map(_DCP_NAMES.fullmatch, names))


def _is_export(name: str) -> bool:
    return name.startswith("model") and name.endswith(
        (safetensors.SUFFIX, safetensors.SUFFIX + safetensors.INDEX_SUFFIX)
    )


def _is_more_than_weights(look: Look) -> bool:
    """Whether its metadata names any state of a training; what cannot be told may be one."""
    if not look.has_file(dcp.METADATA):
        return True
    with look.judging(dcp.METADATA), look.open(dcp.METADATA) as blob:
        return _names_one(blob)
    return True


def _names_one(blob: Blob) -> bool:
    for start in range(0, blob.size_bytes, _PIECE_BYTES):
        size_bytes = min(_PIECE_BYTES + _OVERLAP_BYTES, blob.size_bytes - start)
        if _MORE_THAN_WEIGHTS.search(blob.read(start, size_bytes)):
            return True
    return False


FORMAT = Format(name="torchtitan", step_named=step_named, recognise=recognise, examine=examine)
