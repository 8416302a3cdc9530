"""Writes checkpoints as accelerate's `save_state` does, without it."""

from __future__ import annotations

from pathlib import Path

from tests.formats.huggingface import aged, plain, torch_bytes, write_weights
from tests.formats.safetensors import write_safe


def random_states(step: int) -> bytes:
    """What a rank saves of its random generators."""
    return torch_bytes(plain({"step": step, "random_state": (3, (1, 2), None)}))


def write_state(
    directory: Path,
    number: int,
    *,
    ranks: int = 1,
    kind: str = "single",
    models: int = 1,
    custom: int = 0,
    name: str = "",
) -> Path:
    """A checkpoint of so many models, each with its optimizer, and one scheduler. Returns its folder."""
    folder = directory / (name or f"checkpoint_{number}")
    folder.mkdir(parents=True)
    write_weights(folder, kind)
    for model in range(1, models):
        write_safe(folder / f"model_{model}.safetensors")
    for model in range(models):
        (folder / (f"optimizer_{model}.bin" if model else "optimizer.bin")).write_bytes(torch_bytes())
    (folder / "scheduler.bin").write_bytes(torch_bytes())
    for rank in range(ranks):
        (folder / f"random_states_{rank}.pkl").write_bytes(random_states(number * 2 + 2))
    for one in range(custom):
        (folder / f"custom_checkpoint_{one}.pkl").write_bytes(torch_bytes())
    return aged(folder)
