"""Megatron-LM's older layout (`--ckpt-format torch`): a folder for each model-parallel rank, files of torch.save.

`mp_rank_TT` has the tensor-parallel rank, then, where the model is split so, the pipeline rank, then the expert rank.
The first of each group of data-parallel ranks writes. Nothing says that all did, but each file keeps the arguments of
the training. Source: `get_checkpoint_name` and `save_checkpoint` in Megatron-LM's training/checkpointing.py.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec import Struct

from fleetctl.checkpoint.format import MOST_TOLD, Facts, Unit, as_ranks, as_step, gaps, places
from fleetctl.checkpoint.formats.beside import names_in, never_finished
from fleetctl.checkpoint.formats.torch import check_torch_file, pickle_of, units_of
from fleetctl.checkpoint.inert import Map, Stub
from fleetctl.checkpoint.look import Look, moment
from fleetctl.checkpoint.model import Level
from fleetctl.checkpoint.storage import Found, Kind
from fleetctl.checkpoint.zips import Zip, has_crcs

MODEL = "model_optim_rng.pt"
_OPTIMIZER = "distrib_optim.pt"
_PART = re.compile(r"layer_wise_optimizer_([0-9]{1,6})\.pt")  # of a data-parallel rank
_RANK = re.compile(r"mp_rank_([0-9]{2,6})(?:_([0-9]{3,6}))?(?:_([0-9]{3,6}))?")
_TRACKER = "latest_checkpointed_iteration.txt"
_MOST_DIGITS = 18  # of a step

Rank = tuple[int, ...]  # tensor, then pipeline and expert where they are split


class _File(Struct, frozen=True):
    look: Look  # the folder that it lies in
    name: str
    found: Found
    zipped: Zip | None


class _Split(Struct, frozen=True):
    """Into how many parts the model was split, as the arguments of the training say."""

    tensor: int
    pipeline: int
    expert: int

    @property
    def sizes(self) -> Rank:
        """Of the numbers in a folder's name."""
        return (self.tensor, *(size for size in (self.pipeline, self.expert) if size > 1))


def rank_of(name: str) -> Rank | None:
    """Whose folder it is: mp_rank_01_003 is (1, 3)."""
    found = _RANK.fullmatch(name)
    rank = tuple(int(number) for number in found.groups() if number is not None) if found else ()
    return rank if rank and _name_of(rank) == name else None


def iteration_of(state: object) -> int | None:
    """What a file of Megatron-LM's says that it is of."""
    said = state.get("iteration") if isinstance(state, Map) else None
    return as_step(said)


def step_of_rank(folder: Look) -> int | None:
    """The iteration that the model in one rank's folder says."""
    zipped = check_torch_file(folder, MODEL) if MODEL in names_in(folder) else None
    return None if zipped is None else iteration_of(pickle_of(folder, MODEL, zipped))


def check_legacy(look: Look, older: Look | None, iteration: int | None, level: Level) -> Facts:
    """A step in the older layout. `iteration` is what its files must say."""
    folders = {rank: look.below(name) for name, one in look.children().items()
               if one.kind is Kind.FOLDER and (rank := rank_of(name)) is not None}  # fmt: skip
    there = frozenset(folders)
    outside = {rank for name in names_in(older) if (rank := rank_of(name)) is not None} - there
    lacking = {_model_of(rank) for rank in (_absent_of(there) if _is_uneven(there) else ())}
    short = {_model_of(rank) for rank in outside} - lacking
    for name in sorted(lacking):
        look.missing(name)
    _tell_missing_files(folders)
    if not short:  # else the files themselves have to say who is right
        look.passed(Level.NAMES)
    files, step = list[_File](), None
    if level >= Level.STRUCTURE:
        files = [file for _, folder in sorted(folders.items()) for file in _checked(folder)]
        step, split = _check_models(files, iteration)
        short = short if split is None else set(_beyond(there, split)) - lacking
    for name in sorted(short):
        look.missing(name)
    look.passed(level)
    return _facts(look, folders.values(), files, step)


def _facts(look: Look, folders: Iterable[Look], files: list[_File], step: int | None) -> Facts:
    found = [one for folder in folders for one in _files(folder).values()]
    return Facts(
        training_step=step,
        size_bytes=sum(one.size_bytes for one in found),
        saved_at=moment(max((one.modified_at_s for one in found), default=0.0)),
        # The model's split cannot be changed, but the number of data-parallel ranks can: no one number of ranks
        ranks=None,
        uncommitted=never_finished(look, _TRACKER, _step_of),
        content=lambda: _units(files),
        unproved=tuple("/".join(one.look.inner(one.name)) for one in files if one.zipped and not has_crcs(one.zipped)),
    )


def _units(files: Iterable[_File]) -> Iterator[Unit]:
    for file in files:
        if file.zipped is not None:
            yield from units_of(file.look, file.name, file.zipped)


def _files(folder: Look) -> dict[str, Found]:
    """Those that are loaded from it. The state of a data loader may lie there too; it has a place of its own."""
    return {
        name: one for name, one in folder.children().items() if name in (MODEL, _OPTIMIZER) or _PART.fullmatch(name)
    }


def _checked(folder: Look) -> Iterator[_File]:
    for name, found in sorted(_files(folder).items()):
        yield _File(folder, name, found, check_torch_file(folder, name))


def _step_of(text: str) -> int | None:
    """Of a folder's name, or of what the pointer says."""
    digits = text.removeprefix("iter_")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS else None


def _name_of(rank: Rank) -> str:
    return f"mp_rank_{rank[0]:02d}" + "".join(f"_{number:03d}" for number in rank[1:])


def _model_of(rank: Rank) -> str:
    return f"{_name_of(rank)}/{MODEL}"


def _tell_missing_files(folders: Mapping[Rank, Look]) -> None:
    """Each has a model. What one has of an optimizer in files of its own, all have."""
    optimizers = any(_OPTIMIZER in folder.names() for folder in folders.values())
    parts = {rank: {int(said[1]) for name in folder.names() if (said := _PART.fullmatch(name))}
             for rank, folder in folders.items()}  # fmt: skip
    most = max((max(there, default=-1) for there in parts.values()), default=-1) + 1
    for _, folder in sorted(folders.items()):
        folder.file_size(MODEL)
        if optimizers:
            folder.file_size(_OPTIMIZER)
    absent = ((folder, number) for rank, folder in sorted(folders.items()) for number in gaps(parts[rank], most))
    for folder, number in itertools.islice(absent, MOST_TOLD):
        folder.missing(f"layer_wise_optimizer_{number}.pt")


def _is_uneven(ranks: frozenset[Rank]) -> bool:
    """Whether some are missing by the numbers of the others: all combinations were written, or, where experts and
    tensors share the same ranks, as many for each number."""
    for there in _by_length(ranks):
        for numbers in zip(*there, strict=True):
            counts = Counter(numbers)
            if len(counts) != max(numbers) + 1 or len(set(counts.values())) != 1:
                return True
    return False


def _absent_of(ranks: frozenset[Rank]) -> Iterator[Rank]:
    """What there is not of all combinations of numbers up to the highest."""
    for there in _by_length(ranks):
        sizes = tuple(max(numbers) + 1 for numbers in zip(*there, strict=True))
        yield from itertools.islice(_absent(sizes, there), MOST_TOLD)


def _by_length(ranks: frozenset[Rank]) -> list[set[Rank]]:
    return [{rank for rank in ranks if len(rank) == length} for length in sorted({len(rank) for rank in ranks})]


def _absent(sizes: Rank, there: Collection[Rank]) -> Iterator[Rank]:
    return (rank for rank in places(sizes) if rank not in there)


def _beyond(folders: frozenset[Rank], split: _Split) -> Iterator[str]:
    """What is missing by what the training's arguments say."""
    sizes = split.sizes
    there = {rank for rank in folders if len(rank) == len(sizes)}
    if not there:
        return  # a converter wrote other names, and kept the arguments of what it read
    if split.expert == 1:
        yield from map(_model_of, itertools.islice(_absent(sizes, there), MOST_TOLD))
        return
    # Not each tensor rank has each expert, so nobody knows which folder it was; but each number must be there
    tensors, experts = {rank[:-1] for rank in there}, {rank[-1:] for rank in there}
    for rank in itertools.islice(_absent(sizes[:-1], tensors), MOST_TOLD):
        yield f"{_name_of(rank)}_*/{MODEL}"
    for (expert,) in itertools.islice(_absent(sizes[-1:], experts), MOST_TOLD):
        yield f"mp_rank_*_{expert:03d}/{MODEL}"


def _check_models(files: Iterable[_File], iteration: int | None) -> tuple[int | None, _Split | None]:
    """What the models say: their iteration, which is the same in all, and how the model was split."""
    splits, steps = Counter[_Split](), Counter[int]()
    said = list[tuple[_File, int]]()
    for file in files:
        state = pickle_of(file.look, file.name, file.zipped) if file.zipped and file.name == MODEL else None
        if not isinstance(state, Map):
            continue
        step, split = iteration_of(state), _split_of(state.get("args"))
        if step is not None:
            said.append((file, step))
            steps[step] += 1
        if split is not None:
            splits[split] += 1
    wanted = iteration if iteration is not None else steps.most_common(1)[0][0] if steps else None
    for file, step in said:
        if step != wanted:
            file.look.wrong(file.name, f"is of another save: it says iteration {step}, not {wanted}")
    return wanted if steps else None, splits.most_common(1)[0][0] if splits else None


def _split_of(arguments: object) -> _Split | None:
    """From an argparse.Namespace."""
    state = arguments.state if isinstance(arguments, Stub) else None
    if not isinstance(state, Map):
        return None
    tensor, pipeline = (as_ranks(state.get(f"{kind}_model_parallel_size")) for kind in ("tensor", "pipeline"))
    expert = as_ranks(state.get("expert_model_parallel_size")) or 1  # older ones have none
    return None if tensor is None or pipeline is None else _Split(tensor, pipeline, expert)
