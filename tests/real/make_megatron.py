"""Writes checkpoints by megatron-core itself, with two ranks on the CPU, and loads them. Needs the real libraries.

`save FOLDER`: iterations 10 and 20 below FOLDER/dist, then 30, whose save does not end. FOLDER/dcp is what Megatron-LM
writes with `torch_dcp`, and FOLDER/legacy its older layout: both by torch, as in its training/checkpointing.py.
`load FOLDER ITERATION...`: prints "loaded ITERATION" or "refused ITERATION" for each.
"""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.mapping import ShardedObject
from torch import multiprocessing

_RANKS = 2
_ROWS = 300


def _state(rank: int, iteration: int) -> dict[str, object]:
    rows = torch.arange(_ROWS * 8, dtype=torch.float32).reshape(_ROWS, 8) + rank
    return {
        "weight": ShardedTensor.from_rank_offsets("weight", rows, (0, rank, _RANKS)),
        "bias": ShardedTensor.from_rank_offsets("bias", torch.ones(8), replica_id=rank),
        "rng_state": ShardedObject("rng_state", [torch.get_rng_state()], (_RANKS,), (rank,)),
        "iteration": iteration,
        "args": {"tensor_model_parallel_size": 1},
    }


def _save(rank: int, folder: Path) -> None:
    for iteration in (10, 20, 30):
        path = _made(rank, folder / "dist" / f"iter_{iteration:07d}")
        if iteration < 30:
            dist_checkpointing.save(_state(rank, iteration), str(path))
        else:  # killed after the shards were written
            request = dist_checkpointing.save(_state(rank, iteration), str(path), async_sharded_save=True)
            request._replace(finalize_fns=[]).execute_sync()
    state = {"iteration": 10, "model": {"weight": torch.ones(_ROWS)}}
    torch.distributed.checkpoint.save(state, checkpoint_id=_made(rank, folder / "dcp" / "iter_0000010"))
    sizes = {"tensor_model_parallel_size": _RANKS, "pipeline_model_parallel_size": 1, "expert_model_parallel_size": 1}
    path = folder / "legacy" / "iter_0000010" / f"mp_rank_{rank:02d}"
    path.mkdir(parents=True)
    torch.save({**state, "args": Namespace(**sizes)}, path / "model_optim_rng.pt")
    torch.save({0: {"param": torch.ones(_ROWS)}}, path / "distrib_optim.pt")


def _made(rank: int, path: Path) -> Path:
    if rank == 0:
        path.mkdir(parents=True)
    torch.distributed.barrier()
    return path


def _load(rank: int, folder: Path, iteration: int) -> None:
    state = _state(rank, 0)
    state["weight"].data = torch.zeros_like(state["weight"].data)
    try:
        loaded = dist_checkpointing.load(state, str(folder / "dist" / f"iter_{iteration:07d}"))
    except CheckpointingException as error:
        print(f"refused {iteration}: {error}", flush=True)
        return
    assert loaded["weight"][0, 1].item() == 1 + rank
    if rank == 0:
        print(f"loaded {loaded['iteration']}", flush=True)


def _rank(rank: int, meeting: str, do: str, folder: str, *rest: str) -> None:
    torch.set_num_threads(1)
    # megatron-core asks for these also where all tensors are on the CPU
    torch.cuda.synchronize, torch.cuda.current_device = lambda: None, lambda: "cpu"
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=_RANKS)
    if do == "save":
        _save(rank, Path(folder))
    else:
        for iteration in rest:
            _load(rank, Path(folder), int(iteration))
    torch.distributed.destroy_process_group()


def main(argv: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(_rank, (f"{folder}/meeting", *argv), _RANKS, start_method="fork")


if __name__ == "__main__":
    main(sys.argv[1:])
