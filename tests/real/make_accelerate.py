"""Save the state of a tiny training by accelerate; run by the interpreter that has it.

make_accelerate.py train FOLDER          four steps, a save each two, all that accelerate can save
make_accelerate.py ranks FOLDER COUNT    the same on so many processes, over gloo
make_accelerate.py resume CHECKPOINT     load it and do a step; prints the learning rate found and the next loss
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


class Counter:
    """An object of the user's that is saved, too."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def setup(folder: Path):
    import torch
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    torch.manual_seed(0)
    naming = ProjectConfiguration(project_dir=str(folder), automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=naming, gradient_accumulation_steps=2)
    models = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.1) for model in models]
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizers[0], 1, 0.5)]
    rows = torch.utils.data.TensorDataset(torch.ones(64, 8))
    loader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
    prepared = accelerator.prepare(*models, *optimizers, *schedulers, loader)
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    return accelerator, prepared, counter


def step(accelerator, prepared, counter, rows) -> float:
    first, second, one, two, schedule, _ = prepared
    with accelerator.accumulate(first, second):
        loss = second(first(rows)).square().mean()
        accelerator.backward(loss)
        for each in (one, two, schedule):
            each.step()
        one.zero_grad()
        two.zero_grad()
        counter.count += 1
    return float(loss.detach())


def train(folder: Path) -> None:
    accelerator, prepared, counter = setup(folder)
    for number, (rows,) in enumerate(prepared[-1], 1):
        step(accelerator, prepared, counter, rows)
        if number % 2 == 0:
            accelerator.save_state()
        if number == 4:
            break
    accelerator.wait_for_everyone()
    accelerator.end_training()


def save_fsdp(folder: Path) -> None:
    import torch
    from accelerate import Accelerator
    from accelerate.checkpointing import save_accelerator_state
    from accelerate.utils import FullyShardedDataParallelPlugin, save_fsdp_model, save_fsdp_optimizer
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (accelerator.num_processes,)))
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        state_dict_type="SHARDED_STATE_DICT",
        auto_wrap_policy="NO_WRAP",
        cpu_ram_efficient_loading=False,
    )
    target = str(folder / "checkpoints" / "checkpoint_0")
    save_fsdp_model(plugin, accelerator, model, target)
    save_fsdp_optimizer(plugin, accelerator, optimizer, model, target)
    save_accelerator_state(target, [], [], [schedule], [], accelerator.process_index, 1)
    accelerator.end_training()


def on_each_rank(count: str, *arguments: str) -> None:
    """By torchrun, which keeps its port from the start: one chosen before may be another's by then."""
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count)
    os.execv(sys.executable, [sys.executable, *launch, __file__, *arguments])


def resume(checkpoint: Path) -> None:
    import torch

    accelerator, prepared, counter = setup(checkpoint.parent / "resumed")
    accelerator.load_state(str(checkpoint))
    rate = prepared[2].param_groups[0]["lr"]
    print(
        json.dumps(
            {"rate": rate, "count": counter.count, "loss": step(accelerator, prepared, counter, torch.ones(4, 8))}
        )
    )


def main(what: str, folder: Path, *rest: str) -> None:
    if rest:
        on_each_rank(rest[0], {"ranks": "train", "fsdp": "fsdp"}[what], str(folder))
    {"train": train, "fsdp": save_fsdp, "resume": resume}[what](folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
