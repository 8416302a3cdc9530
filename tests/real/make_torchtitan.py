"""Writes checkpoints as torchtitan calls torch for it, by two processes: make_torchtitan.py FOLDER.

torchtitan itself is not installed. Its CheckpointManager saves a flat dict of the model's parameters and of the states
"optimizer", "lr_scheduler", "dataloader" and "train_state" to step-N by torch.distributed.checkpoint; the last one may
be the parameters alone (step 40), or an export for Hugging Face (step 50). The save of step 60 dies before it writes
`.metadata`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn


class TrainState:
    """As torchtitan.train: a step in a tensor."""

    def __init__(self, step: int) -> None:
        self.step = step

    def state_dict(self) -> dict[str, Any]:
        return {"step": torch.tensor(self.step, dtype=torch.int32), "ntokens_seen": torch.tensor(self.step * 1000)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"].item())


def states(model: Any, optimizer: Any, scheduler: Any, step: int, rank: int) -> dict[str, Any]:
    return {
        **get_model_state_dict(model),
        "optimizer": get_optimizer_state_dict(model, optimizer),
        "lr_scheduler": scheduler.state_dict(),
        "dataloader": {f"dp_rank_{rank}": b"position"},
        "train_state": TrainState(step),
    }


def work(rank: int, folder: str, address: str) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=address)
    torch.manual_seed(0)
    mesh = dist.init_device_mesh("cpu", (2,))
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 8))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    for step in (10, 20, 30):
        model(torch.randn(4, 32)).sum().backward()
        optimizer.step()
        scheduler.step()
        dcp.save(states(model, optimizer, scheduler, step, rank), checkpoint_id=f"{folder}/step-{step}")
    dcp.save(get_model_state_dict(model), checkpoint_id=f"{folder}/step-40")
    again = states(model, optimizer, scheduler, 20, rank)
    dcp.load(again, checkpoint_id=f"{folder}/step-20")
    assert again["train_state"].step == 20
    export(model, f"{folder}/step-50")
    dist.barrier()
    if rank == 0:
        dcp.FileSystemWriter.finish = lambda *_args, **_more: os._exit(0)
    try:
        dcp.save(states(model, optimizer, scheduler, 60, rank), checkpoint_id=f"{folder}/step-60")
    except RuntimeError:
        os._exit(0)  # the other one is gone


def export(model: Any, folder: str) -> None:
    """As `last_save_in_hf` does it, with names of two files that do not matter."""
    weights = get_model_state_dict(model)
    files = {name: 1 + number % 2 for number, name in enumerate(weights)}
    writer = dcp.HuggingFaceStorageWriter(
        f"{folder}/sharded", fqn_to_index_mapping=files, save_distributed=True, enable_consolidation=False
    )
    dcp.save(weights, storage_writer=writer)
    if dist.get_rank() == 0:
        consolidate_safetensors_files(f"{folder}/sharded", folder, fqn_to_index_mapping=files, num_threads=1)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    where.mkdir(parents=True)
    spawn(work, (str(where), f"file://{where}/../rendezvous"), nprocs=2)
