"""Steps of Megatron-LM without Megatron, in the layouts that megatron-core 0.16.1 and Megatron-LM write."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from tests.formats.dcp import SAVED_AT_S, metadata, metadata_bytes, put_at, shards_of
from tests.formats.pickles import Made, Named
from tests.formats.torch import data, tensor, torch_bytes

FLOATS = 600
_COMMIT = {"sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}


def common_bytes(iteration: int, *, crcs: bool = True) -> bytes:
    """The file common.pt."""
    state = {"iteration": iteration, "args": _arguments(1, 1, 1), "rng_state": tensor(0, FLOATS)}
    return torch_bytes(state, {0: data(FLOATS)}, stem="common", crcs=crcs)


def write_dist(
    directory: Path, iteration: int, *, common: bool = True, commit: bool = True, integrity: bool = False
) -> Path:
    """A step of `torch_dist`. Without `common` and `commit` it is DCP alone."""
    folder = directory / (f"iter_{iteration:07d}")
    folder.mkdir(parents=True)
    shards = shards_of()
    if common:
        put_at(folder / "common.pt", common_bytes(iteration), SAVED_AT_S - 2)
    for name, parts in shards.items():
        put_at(folder / name, b"".join(parts.values()), SAVED_AT_S - 1)
    plans = [Made(Named("torch.distributed.checkpoint.planner", "SavePlan"), state={"items": []}, new=True)]
    put_at(folder / ".metadata", metadata_bytes({**metadata(shards), "all_local_plans": plans}), SAVED_AT_S)
    if commit:
        put_commit(folder)
    if integrity:
        put_integrity(folder)
    return folder


def put_commit(folder: Path, backend: object = "torch_dist") -> None:
    """The file metadata.json."""
    put_at(folder / "metadata.json", json.dumps({"sharded_backend": backend, **_COMMIT}).encode(), SAVED_AT_S + 1)


def put_integrity(folder: Path, **change: object) -> None:
    """The file integrity.json, of the files that are there."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "integrity.json")
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    said = {"algorithm": "sha256", "files": digests, **change}
    (folder / "integrity.json").write_text(json.dumps(said, indent=2))


def _arguments(tensor_ranks: int, pipeline_ranks: int, expert_ranks: int) -> Made:
    sizes = {
        "tensor_model_parallel_size": tensor_ranks,
        "pipeline_model_parallel_size": pipeline_ranks,
        "expert_model_parallel_size": expert_ranks,
        "use_distributed_optimizer": True,
    }
    return Made(Named("argparse", "Namespace"), state=sizes, new=True)


def model_bytes(iteration: int, sizes: tuple[int, int, int], **change: object) -> bytes:
    """The file model_optim_rng.pt."""
    state: dict[str, object] = {
        "args": _arguments(*sizes),
        "checkpoint_version": 3.0,
        "iteration": iteration,
        "model": Made(Named("collections", "OrderedDict"), items={"w": tensor(0, FLOATS)}),
        **change,
    }
    return torch_bytes(state, {0: data(FLOATS)}, stem="model_optim_rng")


def write_legacy(
    directory: Path,
    iteration: int,
    sizes: tuple[int, int, int] = (2, 2, 1),
    *,
    ranks: Iterable[tuple[int, ...]] | None = None,
    optimizer: bool = True,
    name: str = "",
) -> Path:
    """A step in the older layout; `sizes` are tensor, pipeline and expert, `ranks` what is written of them."""
    folder = directory / (name or f"iter_{iteration:07d}")
    folder.mkdir(parents=True)
    split = [size for place, size in enumerate(sizes) if place == 0 or size > 1]
    for rank in _product(split) if ranks is None else ranks:
        inside = folder / ("mp_rank_" + "_".join([f"{rank[0]:02d}", *(f"{number:03d}" for number in rank[1:])]))
        inside.mkdir()
        (inside / "model_optim_rng.pt").write_bytes(model_bytes(iteration, sizes))
        if optimizer:
            (inside / "distrib_optim.pt").write_bytes(torch_bytes({0: {"param": tensor(0, 9)}}, {0: data(9)}))
        for path in inside.iterdir():
            os.utime(path, (SAVED_AT_S, SAVED_AT_S))
    (directory / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    return folder


def _product(sizes: list[int]) -> list[tuple[int, ...]]:
    ranks: list[tuple[int, ...]] = [()]
    for size in sizes:
        ranks = [(*rank, number) for rank in ranks for number in range(size)]
    return ranks
