"""Steps of DeepSpeed without DeepSpeed, in the layouts that deepspeed 0.19.8 was seen to write."""

from __future__ import annotations

import os
from pathlib import Path

from tests.formats.pickles import Made, Named
from tests.formats.torch import data, tensor, torch_bytes

SAVED_AT_S = 1_767_225_600.0  # 2026-01-01
FLOATS = 600


def model_bytes(step: int, data_ranks: int, model_ranks: int = 1, *, zero: bool = True, **change: object) -> bytes:
    """A file of model states: weights and the engine's counters."""
    shapes = Made(Named("collections", "OrderedDict"), items={"w": Made(Named("torch", "Size"), ((FLOATS,),))})
    state: dict[str, object] = {
        "module": Made(Named("collections", "OrderedDict"), items={"w": tensor(0, FLOATS)}),
        "buffer_names": [],
        "optimizer": None if zero else {"state": {}, "param_groups": [{"lr": 0.1}]},
        "param_shapes": [shapes] if zero else None,
        "skipped_steps": 0,
        "global_steps": step,
        "global_samples": 4 * step,
        "dp_world_size": data_ranks,
        "mp_world_size": model_ranks,
        "ds_config": {"train_batch_size": 4, "zero_optimization": {"stage": 1}},
        "ds_version": "0.19.8",
        **change,
    }
    return torch_bytes(state, {0: data(FLOATS)}, stem="model_states")


def optimizer_bytes(parts: int, rank: int, *, stage: int = 1, crcs: bool = True) -> bytes:
    """A part of a ZeRO optimizer."""
    state = {
        "loss_scaler": Made(Named("deepspeed.runtime.fp16.loss_scaler", "LossScaler"), state={"cur_scale": 1.0}),
        "zero_stage": Made(Named("deepspeed.runtime.zero.config", "ZeroStageEnum"), (stage,)),
        "partition_count": parts if stage == 3 else [parts, parts],
        "single_partition_of_fp32_groups": [tensor(0, FLOATS)],
    }
    value = {"optimizer_state_dict": state, "ds_config": {}, "ds_version": "0.19.8"}
    return torch_bytes(value, {0: data(FLOATS + rank)}, stem="optim_states", crcs=crcs)


def write_zero(
    directory: Path,
    step: int,
    *,
    stage: int = 1,
    data_ranks: int = 2,
    model_ranks: int = 1,
    bf16: bool = False,
    name: str = "",
) -> Path:
    """A whole step of one stage of ZeRO; 0 is none. Moves `latest` to it."""
    folder = directory / (name or f"global_step{step}")
    folder.mkdir(parents=True)
    for mp in range(model_ranks):
        for rank in range(data_ranks if stage == 3 else 1):
            head = f"zero_pp_rank_{rank}_" if stage == 3 else ""
            raw = model_bytes(step, data_ranks, model_ranks, zero=stage > 0)
            (folder / f"{head}mp_rank_{mp:02d}_model_states.pt").write_bytes(raw)
        for rank in range(data_ranks if stage else 0):
            path = folder / f"{'bf16_' * bf16}zero_pp_rank_{rank}_mp_rank_{mp:02d}_optim_states.pt"
            path.write_bytes(optimizer_bytes(data_ranks, rank, stage=stage))
    return saved(folder)


def write_experts(directory: Path, step: int, *, layers: int = 2, experts: int = 4, zero: bool = False) -> Path:
    """A step with mixtures of experts, without ZeRO unless asked for."""
    folder = write_zero(directory, step, stage=1 if zero else 0, data_ranks=4)
    for layer in range(layers):
        for expert in range(experts):
            raw = torch_bytes({"w": tensor(0, FLOATS)}, {0: data(FLOATS)})
            (folder / f"layer_{layer}_expert_{expert}_mp_rank_00_model_states.pt").write_bytes(raw)
    for rank in range(0 if zero else 2):
        (folder / f"expp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(torch_bytes({"optimizer": {}}, {}))
    return saved(folder)


def write_pipeline(directory: Path, step: int, *, slices: int = 2) -> Path:
    """A step of a pipeline of two stages. Layer 1 has no parameters, so it has no file."""
    folder = write_zero(directory, step, stage=1, data_ranks=2, model_ranks=2 * max(slices, 1))
    for layer in (0, 2, 3):
        for part in range(max(slices, 1)):
            axis = f"-model_{part:02d}" if slices else ""
            raw = torch_bytes({"w": tensor(0, FLOATS)}, {0: data(FLOATS)})
            (folder / f"layer_{layer:02d}{axis}-model_states.pt").write_bytes(raw)
    return saved(folder)


def write_universal(directory: Path, step: int) -> Path:
    """A step that was converted to the universal layout."""
    folder = directory / f"global_step{step}_universal"
    parameter = folder / "zero" / "w"
    parameter.mkdir(parents=True)
    for name in ("fp32", "exp_avg", "exp_avg_sq", "step"):
        (parameter / f"{name}.pt").write_bytes(torch_bytes({"param": tensor(0, FLOATS)}, {0: data(FLOATS)}))
    (folder / "zero" / "optimizer_state.pt").write_bytes(torch_bytes({"param_groups": []}, {}))
    (folder / "mp_rank_00_model_states.pt").write_bytes(model_bytes(step, 2))
    (directory / "latest_universal").write_text(folder.name)
    return folder


def saved(folder: Path) -> Path:
    """All of it at one time, and the pointer at it."""
    for path in folder.iterdir():
        os.utime(path, (SAVED_AT_S, SAVED_AT_S))
    (folder.parent / "latest").write_text(folder.name)
    return folder
