"""What the names of DeepSpeed's files say: which rank wrote which part, and so which parts are missing.

All names are of deepspeed 0.19.8: `_get_ckpt_name`, `_get_rank_zero_ckpt_name`, `_get_expert_ckpt_name` and
`_get_optimizer_ckpt_name` in runtime/engine.py, `ckpt_layer_path` in runtime/pipe/module.py.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from fleetctl.checkpoint.format import MOST_TOLD, places

_GRID = re.compile(
    r"(?:(?P<head>(?:bf16_)?zero_pp_rank_|(?:layer_[0-9]{1,6}_)?expert_|expp_rank_)(?P<index>[0-9]{1,6})_)?"
    r"mp_rank_(?P<mp>[0-9]{2,6})(?P<tail>_model_states\.pt|_?optim_states\.pt)"
)
_LAYER = re.compile(r"layer_(?P<layer>[0-9]{2,6})-(?:(?P<axis>[a-z]+)_(?P<slice>[0-9]{2,6})-)?model_states\.pt")
_MODEL_TAIL, _OPTIMIZER_TAIL = "_model_states.pt", "_optim_states.pt"
_BY_DATA_RANK = ("zero_pp_rank_", "bf16_zero_pp_rank_")


class Family(Struct, frozen=True, order=True):
    """Files that differ by an index and by their model-parallel rank. Those without an index have an empty head."""

    head: str
    tail: str

    def name(self, index: int, mp: int) -> str:
        """One file of it."""
        return f"{self.head}{index}_mp_rank_{mp:02d}{self.tail}" if self.head else f"mp_rank_{mp:02d}{self.tail}"

    @property
    def by_data_rank(self) -> bool:
        """Whether its index is the data-parallel rank: what ZeRO has split."""
        return self.head in _BY_DATA_RANK

    @property
    def is_model(self) -> bool:
        """Whether each rank's model and counters are in it."""
        return self.tail == _MODEL_TAIL and self.head in ("", "zero_pp_rank_")

    @property
    def is_optimizer(self) -> bool:
        """Whether it is a ZeRO optimizer."""
        return self.by_data_rank and self.tail != _MODEL_TAIL


class Layer(Struct, frozen=True, order=True):
    """A layer of a pipeline, or one slice of it. Layers without parameters have no file, so numbers have gaps."""

    number: int
    axis: str
    slice: int

    @property
    def name(self) -> str:
        """Its file."""
        part = f"-{self.axis}_{self.slice:02d}" if self.axis else ""
        return f"layer_{self.number:02d}{part}-model_states.pt"


class Shards(Struct, frozen=True):
    """The files of one step."""

    grids: Mapping[Family, frozenset[tuple[int, int]]]  # the index and the model-parallel rank of each file
    layers: frozenset[Layer]

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in order."""
        files = [family.name(*place) for family, places in sorted(self.grids.items()) for place in sorted(places)]
        return (*files, *(layer.name for layer in sorted(self.layers)))

    @property
    def data_ranks(self) -> int:
        """How many parts ZeRO made of it, by the highest; 0 if none."""
        places = (places for family, places in self.grids.items() if family.by_data_rank)
        return max((index + 1 for index, _ in itertools.chain.from_iterable(places)), default=0)

    @property
    def model_ranks(self) -> int:
        """How many model-parallel ranks wrote it, by the highest; 0 if none."""
        return max((mp + 1 for _, mp in itertools.chain.from_iterable(self.grids.values())), default=0)


def shards_of(names: Iterable[str]) -> Shards:
    """Those of the names that are DeepSpeed's."""
    grids, layers = dict[Family, set[tuple[int, int]]](), set[Layer]()
    for name in names:
        if said := _GRID.fullmatch(name):
            family = Family(said["head"] or "", said["tail"])
            place = int(said["index"] or 0), int(said["mp"])
            if family.name(*place) == name and (family.head or family.is_model):
                grids.setdefault(family, set()).add(place)
        elif said := _LAYER.fullmatch(name):
            layer = Layer(int(said["layer"]), said["axis"] or "", int(said["slice"] or 0))
            if layer.name == name:
                layers.add(layer)
    return Shards({family: frozenset(places) for family, places in grids.items()}, frozenset(layers))


def missing(found: Shards, older: Shards, data_ranks: int, model_ranks: int) -> Iterator[str]:
    """Files that are not there if so many ranks wrote a step with the parts that `found` and `older` have.

    At most so many as somebody would read.
    """
    return itertools.islice(_missing(found, older, data_ranks, model_ranks), MOST_TOLD)


def _missing(found: Shards, older: Shards, data_ranks: int, model_ranks: int) -> Iterator[str]:
    for family in sorted(_families(found, older, split=data_ranks > 0)):
        there = found.grids.get(family, frozenset())
        wanted = _indexes(family, there, older.grids.get(family, frozenset()), data_ranks)
        for mp, index in places((max(model_ranks, 1), wanted)):
            if (index, mp) not in there:
                yield family.name(index, mp)
    layers = found.layers or older.layers
    slices = {(layer.axis, layer.slice) for layer in layers}
    for number in sorted({layer.number for layer in found.layers | older.layers}):
        for axis, part in sorted(slices):
            if (layer := Layer(number, axis, part)) not in found.layers:
                yield layer.name


def _families(found: Shards, older: Shards, *, split: bool) -> set[Family]:
    """Which there must be: those of which there is any, a model, and an optimizer where ZeRO has `split` it."""
    families = set(found.grids) | {family for family in older.grids if not family.by_data_rank and family.head}
    if not any(family.is_model for family in families):
        families.add(_of_older(older, Family("", _MODEL_TAIL), optimizer=False))
    if split and not any(family.is_optimizer for family in families):
        families.add(_of_older(older, Family("zero_pp_rank_", _OPTIMIZER_TAIL), optimizer=True))
    return families


def _of_older(older: Shards, default: Family, *, optimizer: bool) -> Family:
    fit = (family for family in sorted(older.grids) if (family.is_optimizer if optimizer else family.is_model))
    return next(fit, default)


def _indexes(
    family: Family, there: frozenset[tuple[int, int]], older: frozenset[tuple[int, int]], data_ranks: int
) -> int:
    if family.by_data_rank:
        return data_ranks
    return max((index + 1 for index, _ in there | older), default=1) if family.head else 1
