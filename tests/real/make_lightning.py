"""Writes checkpoints by Lightning, and resumes from them. Run by the interpreter that has it, on the CPU.

make_lightning.py files FOLDER                what ModelCheckpoint writes, of several options
make_lightning.py killed FOLDER               step 2, and step 4 whose process dies while it is moved to its name
make_lightning.py sharded FOLDER [START]      by two processes
make_lightning.py resume FOLDER START...      prints the step that two more steps came to, as JSON, or what was raised
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.serialization import config

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Tiny(LightningModule):
    """A model with some kilobytes of parameters."""

    def __init__(self, *, log_step: bool = False) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.log_step = log_step
        self.save_hyperparameters()

    def configure_model(self) -> None:
        mesh = getattr(self, "device_mesh", None)
        if mesh is not None:
            fully_shard(self.layer, mesh=mesh["data_parallel"])

    def training_step(self, batch: Any, _index: int) -> Any:
        loss = self.layer(batch[0]).square().mean()
        if self.log_step:
            self.log("step", float(self.global_step * 10))
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


def data() -> Any:
    return DataLoader(TensorDataset(torch.randn(64, 64)), batch_size=2)


def trainer(folder: Path, steps: int, checkpoint: ModelCheckpoint, **more: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return Trainer(default_root_dir=folder, max_steps=steps, callbacks=[checkpoint], **{"devices": 1, **quiet, **more})


def every_two(folder: Path, **more: Any) -> ModelCheckpoint:
    return ModelCheckpoint(folder, every_n_train_steps=2, save_top_k=-1, **more)


def files(folder: Path) -> None:
    """Each in a folder of its own."""
    trainer(folder / "plain", 6, every_two(folder / "plain", save_last=True)).fit(Tiny(), data())
    trainer(folder / "weights", 2, every_two(folder / "weights", save_weights_only=True)).fit(Tiny(), data())
    logged = trainer(folder / "logged", 4, every_two(folder / "logged"), log_every_n_steps=1)
    logged.fit(Tiny(log_step=True), data())
    linked = trainer(folder / "linked", 3, every_two(folder / "linked", save_last="link"))
    linked.fit(Tiny(), data())
    for _ in range(2):
        linked.save_checkpoint(linked._checkpoint_connector.hpc_save_path(folder / "linked"))
    config.save.compute_crc32 = False
    linked.save_checkpoint(folder / "linked" / "no-crc.ckpt")


def resume(folder: Path, starts: list[Path]) -> None:
    """Two steps more from each; prints the step that it came to, or what was raised."""
    said = {}
    for number, start in enumerate(starts):
        run = trainer(folder, 8, every_two(folder / str(number)))
        try:
            run.fit(Tiny(), data(), ckpt_path=start)
            said[str(start)] = run.global_step
        except Exception as error:  # noqa: BLE001 - whatever it raises is the answer
            said[str(start)] = f"{type(error).__name__}: {error}"[:200]
    print(json.dumps(said))


def killed(folder: Path) -> None:
    """The folder for temporary files lies in another file system: the move is a copy, and the process dies in it."""
    rename, copied = os.rename, list[str]()

    def other_file_system(old: str, new: str, **more: Any) -> None:
        if str(new).endswith(".ckpt"):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(old, new, **more)

    def copy(old: str, new: str, **_more: Any) -> None:
        raw = Path(old).read_bytes()
        copied.append(new)
        Path(new).write_bytes(raw if len(copied) == 1 else raw[: len(raw) // 2])
        if len(copied) > 1:
            os._exit(0)

    os.rename, shutil.copyfile = other_file_system, copy
    trainer(folder, 6, every_two(folder)).fit(Tiny(), data())


def sharded(folder: Path, start: Path | None) -> None:
    """Two processes: Lightning starts the second one itself, with the same arguments."""
    strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1, process_group_backend="gloo")
    checkpoint = every_two(folder, save_last=True)
    run = trainer(folder, 4 if start is None else 6, checkpoint, strategy=strategy, devices=2)
    run.fit(Tiny(), data(), ckpt_path=start)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(json.dumps({str(start): run.global_step}))


if __name__ == "__main__":
    what, folder, starts = sys.argv[1], Path(sys.argv[2]), [Path(path) for path in sys.argv[3:]]
    torch.manual_seed(0)
    if what == "files":
        files(folder)
    elif what == "resume":
        resume(folder, starts)
    elif what == "killed":
        killed(folder)
    else:
        sharded(folder, starts[0] if starts else None)
