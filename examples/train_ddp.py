"""A small PyTorch training with DistributedDataParallel on CPUs (gloo), which saves and resumes with fleetctl.

    fleetctl submit ddp.yaml                 under Slurm, by torchrun
    torchrun --nproc-per-node 2 train_ddp.py        by hand; needs torch and NumPy, and fleetctl on PYTHONPATH

On GPUs only two lines differ: the backend is nccl, and model and data are moved to the rank's device.
"""

from __future__ import annotations

import argparse
import hashlib
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fleetctl.train.checkpointer import Checkpointer
from fleetctl.train.progress import Progress

INPUTS, HIDDEN, SAMPLES, BATCH = 16, 32, 4096, 256


def to_arrays(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """What the training needs to go on, as NumPy arrays and JSON: fleetctl never unpickles what a user wrote."""
    state: dict[str, object] = {f"model.{name}": tensor.numpy() for name, tensor in model.state_dict().items()}
    for index, slots in optimizer.state_dict()["state"].items():
        state.update({f"optimizer.{index}.{name}": value.numpy() for name, value in slots.items()})
    return state


def from_arrays(model: torch.nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, object]) -> None:
    model.load_state_dict({name: torch.from_numpy(np.array(state[f"model.{name}"])) for name in model.state_dict()})
    slots: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in state.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".")
            slots.setdefault(int(index), {})[name] = torch.from_numpy(np.array(value))
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})


def train(options: argparse.Namespace, progress: Progress, checkpoints: Checkpointer) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    inputs = torch.randn(SAMPLES, INPUTS)
    wanted = torch.sin(inputs @ torch.randn(INPUTS, 1) / 2)
    model = torch.nn.Sequential(torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    first, loaded = 1, checkpoints.load()
    if loaded is not None:
        from_arrays(model, optimizer, loaded.state)
        first = loaded.training_step + 1
    parallel = DistributedDataParallel(model)
    for step in range(first, options.steps + 1):
        started = time.monotonic()
        order = np.random.default_rng([options.seed, step]).permutation(SAMPLES)[:BATCH]  # the step tells the data
        mine = torch.from_numpy(order[rank::size].copy())
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(parallel(inputs[mine]), wanted[mine])
        loss.backward()
        optimizer.step()
        progress.update(training_step=step, target_step=options.steps, loss=loss.item())
        told = checkpoints.told_to_end  # asked before `due`: a SIGTERM between the two is for the next step then
        if checkpoints.due(step):  # on rank 0 only: all ranks hold the same, so one saves for all
            checkpoints.save(step, to_arrays(model, optimizer))
        if told and rank == 0:
            checkpoints.wait()
            raise SystemExit(143)
        time.sleep(max(0.0, options.step_time_ms / 1000 - (time.monotonic() - started)))
    progress.update(training_step=options.steps, loss=loss.item() if first <= options.steps else None, done=True)
    if rank == 0:
        digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values()))
        print(f"done: parameters sha256 {digest.hexdigest()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="A small DistributedDataParallel training.")
    parser.add_argument("--steps", type=int, default=300, help="training steps (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the data and the start (default: %(default)s)")
    parser.add_argument("--step-time-ms", type=float, default=0.0, help="slow each step down, to watch it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        with Progress() as progress, Checkpointer() as checkpoints:
            checkpoints.save_on_sigterm()
            train(options, progress, checkpoints)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
