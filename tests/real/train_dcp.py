"""A small DistributedDataParallel training on CPUs that saves with torch.distributed.checkpoint, as its users write it.

It saves every EVERY steps into FOLDER/step_N, goes on from FLEETCTL_RESUME_PATH, and stands still before step WAIT for
as long as the file HOLD is there; each rank makes HOLD.reached.RANK then.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

from fleetctl.train.progress import Progress


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--wait", type=int, default=0)
    parser.add_argument("--hold", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with Progress() as progress:
        train(options, progress)
    dist.destroy_process_group()


def train(options: argparse.Namespace, progress: Progress) -> None:
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first, resume = 1, os.environ.get("FLEETCTL_RESUME_PATH")
    if resume:
        optimizer.zero_grad()
        model(torch.zeros(1, 16)).sum().backward()  # the optimizer has its slots after a step only
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}
        dcp.load(state, checkpoint_id=resume)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
        if rank == 0:
            print(f"loaded step {state['step']} from {resume}", flush=True)
    for step in range(first, options.steps + 1):
        while step == options.wait and os.path.exists(options.hold):
            open(f"{options.hold}.reached.{rank}", "w").close()
            time.sleep(0.05)
        generator = torch.Generator().manual_seed(1000 * step + rank)
        inputs = torch.randn(32, 16, generator=generator)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        loss.backward()
        optimizer.step()
        if step % options.every == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            dcp.save(state, checkpoint_id=os.path.join(options.folder, f"step_{step}"))
        progress.update(training_step=step, target_step=options.steps, loss=loss.item())
    progress.update(training_step=options.steps, target_step=options.steps, done=True)
    if rank == 0:
        digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.module.state_dict().values()))
        print(f"done: parameters sha256 {digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
