"""Trackable resources (TRES) of Slurm: what a record held, how much of a GPU a MIG slice is, and Slurm's billing."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from fractions import Fraction
from functools import lru_cache

from msgspec import Struct

# Slurm prints counts and memory in powers of 1024 (convert_num_unit2), memory from MiB on; unset values are words
# (NONE) or end in "?" (an overflow).
_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,6})?)([KMGTPE]?)B?", re.ASCII)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_LARGEST = 2**63 - 1
_GPU = "gres/gpu"
_UNTYPED = "gpu"
_REPEATS = 4096  # a cluster's jobs ask for the same few shapes

# NVIDIA MIG User Guide, "Supported MIG Profiles": the compute slices of a whole GPU.
_PROFILE = re.compile(r"(?:^|[_.-])([1-9])g\.([0-9]+)gb(?:[+._-].*)?$", re.ASCII | re.IGNORECASE)
_SLICES = 7  # A100, H100, H200, B200
_SLICES_BY_NAME = (("rtx_pro_6000", 4), ("rtx_pro_5000", 2), ("rtx_pro_4500", 2), ("a30", 4))
_OF_FOUR = frozenset({(1, 6), (2, 12), (4, 24), (2, 48), (4, 96)})  # A30 and RTX PRO 6000, where no name says it


class Tres(Struct, frozen=True):
    """What AllocTRES says. None: it says nothing of it; a text that says something else says that there is no GPU."""

    cpus: int | None
    memory_mib: int | None
    nodes: int | None
    gpus: int | None
    gpu_models: str  # "a100=2,h100=6", sorted; GPUs without a type are under "gpu"
    billing: int | None


@lru_cache(maxsize=_REPEATS)
def parse_tres(text: str) -> Tres:
    """Read `billing=16,cpu=16,gres/gpu:h100=8,gres/gpu=8,mem=128G,node=1`. Never raises."""
    found = {key: value for key, equals, value in (part.partition("=") for part in text.split(",")) if equals}
    gpus, models = _gpus(found)
    memory = _size(found.get("mem", ""), "M")
    return Tres(
        cpus=_count(found.get("cpu", "")),
        memory_mib=None if memory is None else round(memory / 1024**2),
        nodes=_count(found.get("node", "")),
        gpus=gpus,
        gpu_models=",".join(f"{model}={count}" for model, count in sorted(models.items())),
        billing=_count(found.get("billing", "")),
    )


def _gpus(found: Mapping[str, str]) -> tuple[int | None, dict[str, int]]:
    """The total that Slurm tells, else the sum of the types (slurm.schedmd.com/tres.html: a site may track either)."""
    models: dict[str, int] = {}
    unread = False  # gres/gpu:h100=NONE
    for key, value in found.items():
        if not key.startswith(f"{_GPU}:"):
            continue
        count = _count(value)
        unread |= count is None
        if count:
            model = key[len(_GPU) + 1 :] or _UNTYPED
            models[model] = models.get(model, 0) + count
    typed = sum(models.values())
    total = _count(found.get(_GPU, ""))
    if total is None:
        if not found or unread or (_GPU in found and not typed):  # gres/gpu=NONE
            return None, {}
        return typed, models
    if typed > total:  # the types contradict the total: believe Slurm's own sum
        return total, {_UNTYPED: total} if total else {}
    if total > typed:
        models[_UNTYPED] = models.get(_UNTYPED, 0) + total - typed
    return total, models


def _count(text: str) -> int | None:
    size = _size(text, "")
    return None if size is None else int(size)


def _size(text: str, base: str) -> Fraction | None:
    """A number with a unit of 1024, else in `base`; None where it is none."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    size = Fraction(match[1]) * 1024 ** _POWER[match[2] or base]
    return size if size <= _LARGEST else None


@lru_cache(maxsize=_REPEATS)
def gpu_equivalents(model: str) -> Fraction:
    """How much of a whole GPU one unit of this type is: `a100_3g.20gb` is 3/7, what is no MIG profile is 1."""
    match = _PROFILE.search(model)
    if match is None:
        return Fraction(1)
    slices, memory_gb = int(match[1]), int(match[2])
    name = re.sub(r"[\s.-]", "_", model.lower())
    whole = next((count for word, count in _SLICES_BY_NAME if word in name), None)
    if whole is None:
        whole = 4 if (slices, memory_gb) in _OF_FOUR else _SLICES
    return min(Fraction(slices, whole), Fraction(1))


def whole_of(model: str) -> str:
    """`a100` of `a100_3g.20gb`; other models, and profiles that name no GPU, as they are."""
    match = _PROFILE.search(model)
    return model if match is None else model[: match.start()] or model


def parse_weights(text: str) -> dict[str, Fraction]:
    """Read TRESBillingWeights (slurm.conf.5): `CPU=1.0,Mem=0.25G,GRES/gpu=2.0`; memory by MiB, keys in lower case.

    :raises ValueError: a part that is no weight.
    """
    weights: dict[str, Fraction] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        match = _SIZE.fullmatch(value.upper())
        if not equals or match is None:
            raise ValueError(f"TRESBillingWeights: {part!r} is no weight such as Mem=0.25G")
        power = _POWER[match[2] or ("M" if key.lower() == "mem" else "")] - (2 if key.lower() == "mem" else 0)
        weights[key.lower()] = Fraction(match[1]) / Fraction(1024) ** power
    return weights


def billing(weights: Mapping[str, Fraction], tres: Mapping[str, Fraction], flags: Collection[str] = ()) -> Fraction:
    """What Slurm bills for these TRES (assoc_mgr_tres_weighted); slurmdbd keeps it cut to a whole number.

    :param weights: of parse_weights; none at all bill the CPUs.
    :param tres: counts, memory in MiB; keys in lower case.
    :param flags: PriorityFlags: with MAX_TRES the dearest of cpu, mem, node and each gres counts, with MAX_TRES_GRES
        that of cpu, mem and node, and every gres on top; what no node has (licenses, burst buffers) is always added.
    """
    if not weights:
        return tres.get("cpu", Fraction(0))
    of_a_node, added = [Fraction(0)], Fraction(0)
    for key, count in tres.items():
        costs = weights.get(key, Fraction(0)) * count
        is_gres = key.startswith("gres/")
        competes = "MAX_TRES" in flags and is_gres
        competes |= bool({"MAX_TRES", "MAX_TRES_GRES"} & set(flags)) and key in {"cpu", "mem", "node"}
        if competes:
            of_a_node.append(costs)
        elif key != "billing":
            added += costs
    return max(of_a_node) + added


def check_weights(weights: Collection[str]) -> None:
    """That what was billed can be told of a record: its CPUs, memory, nodes and GPUs are kept, with the GPUs' types.

    :raises ValueError: there are none, or one is of something else.
    """
    if not weights:
        raise ValueError("TRESBillingWeights: there is no weight")
    for key in weights:
        if key not in {"cpu", "mem", "node", _GPU} and not (key.startswith(f"{_GPU}:") and key != f"{_GPU}:"):
            raise ValueError(f"TRESBillingWeights: {key!r} is not among CPU, Mem, Node, GRES/gpu and GRES/gpu:TYPE")


def units_of(tres: Tres, weights: Mapping[str, Fraction], flags: Collection[str] = ()) -> Fraction | None:
    """What these weights bill for a record. None: what it held of something that has a weight is not known."""
    told = {"cpu": tres.cpus, "mem": tres.memory_mib, "node": tres.nodes, _GPU: tres.gpus}
    for key, weight in weights.items():
        if weight and told[key.partition(":")[0]] is None:
            return None
    held = {key: Fraction(count) for key, count in told.items() if count is not None}
    named = (part.rpartition("=") for part in tres.gpu_models.split(","))
    for model, _, count in named:
        if model and model != _UNTYPED:
            key = f"{_GPU}:{model.lower()}"
            held[key] = held.get(key, Fraction(0)) + int(count)
    return billing(weights, held, flags)
