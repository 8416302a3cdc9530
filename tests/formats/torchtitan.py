"""Checkpoints of torchtitan without it: a folder of its name that torch or safetensors would have written."""

from __future__ import annotations

from pathlib import Path

from tests.formats.dcp import slice_bytes, value_bytes, write_dcp
from tests.formats.safetensors import write_sharded

MORE = ("optimizer.state.w.exp_avg", "lr_scheduler.last_epoch", "train_state.step")


def write_torchtitan(directory: Path, name: str = "step-120", *, more: tuple[str, ...] = MORE) -> Path:
    """Two ranks; the first one has what is no weight as well."""
    first = {"tok_embeddings.weight": slice_bytes(0, 200), **{key: value_bytes(7) for key in more}}
    return write_dcp(directory / name, {"__0_0.distcp": first, "__1_0.distcp": {"layers.0.w": slice_bytes(1, 200)}})


def write_export(directory: Path, name: str = "step-120") -> Path:
    """With `last_save_in_hf`: weights for Hugging Face."""
    folder = directory / name
    write_sharded(folder)
    return folder
