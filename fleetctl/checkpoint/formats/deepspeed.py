"""DeepSpeed: a folder for each step, with the parts that its ranks wrote. Nothing in it says that it is whole.

So that is concluded: each rank from 0 on has its files, of all kinds, and there are as many ranks as each file says
that there were. Only where no file says it, the training's number of ranks and the older step beside this one tell.
What ZeRO has split can be loaded by as many ranks as wrote it, and by no other number (DeepSpeed#2898), unless it was
converted to the universal layout. Source: runtime/engine.py of deepspeed 0.19.8.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct

from fleetctl.checkpoint.format import Facts, Format, Unit, as_ranks, as_step, gaps
from fleetctl.checkpoint.formats import deepspeed_universal as universal
from fleetctl.checkpoint.formats.beside import names_in, never_finished, next_older
from fleetctl.checkpoint.formats.deepspeed_names import Shards, missing, shards_of
from fleetctl.checkpoint.formats.torch import check_torch_file, pickle_of, units_of
from fleetctl.checkpoint.inert import Map
from fleetctl.checkpoint.look import Look, moment
from fleetctl.checkpoint.model import Level
from fleetctl.checkpoint.storage import Kind
from fleetctl.checkpoint.zips import Zip, has_crcs

_STEP = re.compile(r"global_step([0-9]{1,18})")
_LATEST = "latest"  # the pointer beside all steps: written after all else, by one rank
_OFFLOADED = "offloaded_tensors"  # what the optimizer keeps on NVMe, copied for each rank
_RANK = re.compile(r"rank([0-9]{2,6})")


class _Said(Struct, frozen=True):
    """What one file says inside. None is nothing."""

    name: str
    step: int | None = None
    data_ranks: int | None = None  # of the training that wrote it
    parts: int | None = None  # into which ZeRO split it: fewer than its ranks under MiCS
    model_ranks: int | None = None
    split: bool = False  # whether ZeRO keeps the optimizer in files of its own


class _Inside(Struct, frozen=True):
    """What the files say, all together."""

    zips: tuple[tuple[str, Zip], ...] = ()
    step: int | None = None
    data_ranks: int | None = None
    parts: tuple[int, ...] = ()
    model_ranks: int | None = None
    split: bool = False


def step_named(name: str) -> int | None:
    """As in global_step120. A user may give any other name."""
    found = _STEP.fullmatch(name)
    return None if found is None else int(found[1])


def recognise(look: Look) -> bool:
    """A folder with any of its files, or an empty one with its name, where a save ended right after it began."""
    if look.kind() is not Kind.FOLDER:
        return False
    names = look.names()
    empty = step_named(look.name) is not None and names <= {_OFFLOADED}
    return empty or bool(shards_of(names).names) or universal.began(look)


def peek(look: Look) -> int | None:
    """The step that a model file says, for a folder that its user named."""
    aside = look.beside(look.name)
    found = shards_of(aside.names())
    models = (family.name(*min(places)) for family, places in sorted(found.grids.items()) if family.is_model)
    name = next(models, None)
    zipped = None if name is None else check_torch_file(aside, name)
    return None if name is None or zipped is None else _said(name, pickle_of(aside, name, zipped)).step


def examine(look: Look, level: Level) -> Facts:
    """A step. Its tag may be any name."""
    if look.kind() is not Kind.FOLDER:
        look.wrong("", "is no folder")
        return Facts()
    return check_deepspeed(look, level)


def check_deepspeed(look: Look, level: Level) -> Facts:
    """A step in the folder of `look`, which may lie in another checkpoint."""
    found = shards_of(look.names())
    if universal.is_universal(look):
        return universal.check_universal(look, found, level)
    older = shards_of(names_in(next_older(look, step_named)))
    for name in found.names:
        look.file_size(name)
    told = _tell_missing(look, found, older, found.data_ranks, found.model_ranks)
    short = _ranks_outside(look, found, older)
    inside = _Inside()
    if short == (found.data_ranks, found.model_ranks):  # else the files themselves have to say who is right
        look.passed(Level.NAMES)
    if level >= Level.STRUCTURE:
        inside = _look_inside(look, found)
    data_ranks, model_ranks = _ranks(found, inside, short)
    _tell_missing(look, found, older, data_ranks, model_ranks, told)
    _tell_offloaded(look, data_ranks * model_ranks)
    look.passed(level)
    return _facts(look, found, inside)


def _facts(look: Look, found: Shards, inside: _Inside) -> Facts:
    children = [one for name in found.names if (one := look.children().get(name)) is not None]
    data_ranks = inside.data_ranks or found.data_ranks
    unproved = [name for name, zipped in inside.zips if not has_crcs(zipped)]
    if _OFFLOADED in look.names():
        unproved.append(_OFFLOADED)
    return Facts(
        training_step=inside.step,
        size_bytes=sum(one.size_bytes for one in children),
        saved_at=moment(max((one.modified_at_s for one in children), default=0.0)),
        ranks=data_ranks * found.model_ranks if found.data_ranks and data_ranks else None,
        uncommitted=never_finished(look, _LATEST, step_named),
        content=lambda: _units(look, inside.zips),
        unproved=tuple(unproved),
    )


def _units(look: Look, zips: Iterable[tuple[str, Zip]]) -> Iterator[Unit]:
    for name, zipped in zips:
        yield from units_of(look, name, zipped)


def _tell_missing(
    look: Look, found: Shards, older: Shards, data_ranks: int, model_ranks: int, told: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Returns all that are missing; those of `told` are not told again."""
    names = tuple(missing(found, older, data_ranks, model_ranks))
    for name in names:
        if name not in told:
            look.missing(name)
    return told | frozenset(names)


def _ranks_outside(look: Look, found: Shards, older: Shards) -> tuple[int, int]:
    """How many data and model-parallel ranks there must be for all that can be told without opening a file."""
    data_ranks, model_ranks = max(found.data_ranks, older.data_ranks), max(found.model_ranks, older.model_ranks)
    if look.ranks is not None and found.data_ranks and model_ranks:
        data_ranks = max(data_ranks, look.ranks // model_ranks)
    return data_ranks, model_ranks


def _ranks(found: Shards, inside: _Inside, outside: tuple[int, int]) -> tuple[int, int]:
    """How many data and model-parallel ranks there must be. What the files say counts before all else.

    Two numbers may be right: MiCS splits among fewer than all ranks, and experts are split among fewer.
    """
    if inside.data_ranks is None and not inside.parts:
        return outside
    said = sorted({*inside.parts, inside.data_ranks or 0} - {0})
    fit = next((count for count in said if count >= found.data_ranks), said[-1])
    model_ranks = max(found.model_ranks, inside.model_ranks or 0)
    return (max(fit, found.data_ranks) if inside.split or found.data_ranks else 0), model_ranks


def _look_inside(look: Look, found: Shards) -> _Inside:
    """Each file's zip directory, and the counters in its pickle. Sizes are not compared: padding evens the parts out,
    but what describes them differs, and a short file has no zip directory anyway."""
    zips = [(name, zipped) for name in found.names if (zipped := check_torch_file(look, name)) is not None]
    wanted = {family.name(*place) for family, places in found.grids.items() for place in places
              if family.is_model or family.is_optimizer}  # fmt: skip
    said = [_said(name, pickle_of(look, name, zipped)) for name, zipped in zips if name in wanted]
    step = _agreed(look, "training step", [(one.name, one.step) for one in said])
    data_ranks = _agreed(look, "number of data-parallel ranks", [(one.name, one.data_ranks) for one in said])
    parts = _agreed(look, "number of ZeRO's parts", [(one.name, one.parts) for one in said])
    model_ranks = _agreed(look, "number of model-parallel ranks", [(one.name, one.model_ranks) for one in said])
    inside = _Inside(
        tuple(zips), step, data_ranks, () if parts is None else (parts,), model_ranks, any(one.split for one in said)
    )
    _tell_too_many(look, found, inside)
    return inside


def _agreed(look: Look, what: str, said: list[tuple[str, int | None]]) -> int | None:
    """What most files say. Those that say another thing are of another save, and told."""
    counted = Counter(value for _, value in said if value is not None)
    if not counted:
        return None
    most = max(counted, key=lambda value: (counted[value], value))
    for name, value in said:
        if value is not None and value != most:
            look.wrong(name, f"is of another save: its {what} is {value}, that of others is {most}")
    return most


def _tell_too_many(look: Look, found: Shards, inside: _Inside) -> None:
    """Parts of more ranks than there were: two saves lie in one folder, and nobody knows which of the others' parts
    are of which."""
    most = max((*inside.parts, inside.data_ranks or 0))
    if not most:
        return
    for family, places in sorted(found.grids.items()):
        for index, mp in sorted(places):
            if family.by_data_rank and index >= most:
                look.wrong(family.name(index, mp), f"is of another save: there were {most} data-parallel ranks")


def _said(name: str, state: object) -> _Said:
    if not isinstance(state, Map):
        return _Said(name)
    optimizer = state.get("optimizer_state_dict")
    parts = optimizer.get("partition_count") if isinstance(optimizer, Map) else None
    counts = [count for one in (parts if isinstance(parts, list) else [parts]) if (count := as_ranks(one))]
    step = state.get("global_steps")
    return _Said(
        name,
        step=as_step(step),
        data_ranks=as_ranks(state.get("dp_world_size")),
        parts=max(counts, default=None),
        model_ranks=as_ranks(state.get("mp_world_size")),
        split=state.get("param_shapes") is not None,
    )


def _tell_offloaded(look: Look, ranks: int) -> None:
    """Each rank has a folder, where the optimizer is kept on NVMe. Nothing says what must be in it."""
    if _OFFLOADED not in look.names():
        return
    there = {int(said[1]) for name in look.below(_OFFLOADED).names() if (said := _RANK.fullmatch(name))}
    for rank in gaps(there, max(max(there, default=-1) + 1, ranks)):
        look.missing(f"{_OFFLOADED}/rank{rank:02d}")


FORMAT = Format(name="deepspeed", step_named=step_named, recognise=recognise, examine=examine, peek=peek)
