"""Writes checkpoints by DeepSpeed itself, with two ranks on the CPU, and loads one. Needs the real libraries.

`save FOLDER STAGE...`: below FOLDER/zeroSTAGE, after two steps of training and after four.
`load FOLDER STAGE RANKS TAG`: prints "loaded STEP". `convert FOLDER TAG`: to the universal layout, as TAG_universal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.update(DS_ACCELERATOR="cpu", DS_IGNORE_CUDA_DETECTION="1", GLOO_SOCKET_IFNAME="lo")

import deepspeed
import torch
from torch import multiprocessing

_FEATURES = 16


def _engine(stage: int, ranks: int) -> object:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(_FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, _FEATURES))
    config = {
        "train_batch_size": 2 * ranks,
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": stage == 3},
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # DeepSpeed's own would be compiled here
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def _save(engine: object, folder: Path) -> None:
    for step in range(1, 5):
        dtype = next(engine.module.parameters()).dtype
        batch = torch.full((2, _FEATURES), float(step), dtype=dtype)
        loss = engine(batch).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
        if step in (2, 4):
            engine.save_checkpoint(str(folder), client_state={"note": "of its user"})


def _load(engine: object, folder: Path, tag: str) -> None:
    path, state = engine.load_checkpoint(str(folder), tag=tag)
    assert path is not None
    assert state["note"] == "of its user"
    if engine.global_rank == 0:
        print(f"loaded {engine.global_steps}", flush=True)


def _rank(rank: int, ranks: int, meeting: str, argv: list[str]) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.set_num_threads(1)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it is compiled here
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    do, folder, *rest = argv
    if do == "save":
        for stage in rest:
            _save(_engine(int(stage), ranks), Path(folder) / f"zero{stage}")
    else:
        _load(_engine(int(rest[0]), ranks), Path(folder), rest[2])
    torch.distributed.destroy_process_group()


def _convert(folder: str, tag: str) -> None:
    """By the tool that comes with it."""
    tool = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    workers = ["--num_extract_workers", "1", "--num_merge_workers", "1"]
    places = ["--input_folder", f"{folder}/{tag}", "--output_folder", f"{folder}/{tag}_universal"]
    subprocess.run([*tool, *workers, *places], check=True, stdout=sys.stderr)


def main(argv: list[str]) -> None:
    if argv[0] == "convert":
        _convert(*argv[1:])
        return
    ranks = int(argv[3]) if argv[0] == "load" else 2
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(_rank, (ranks, f"{folder}/meeting", argv), ranks, start_method="fork")


if __name__ == "__main__":
    main(sys.argv[1:])
