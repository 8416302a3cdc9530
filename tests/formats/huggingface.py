"""Writes checkpoints as the Trainer of transformers does, without it, and what accelerate writes alike."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

from tests.formats.safetensors import write_safe, write_sharded

SAVED_AT_S = 1_767_225_600.0  # 2026-01-01 UTC
NUMBERS = bytes(range(256))


def torch_bytes(value: bytes | None = None, *, name: str = "archive") -> bytes:
    """A file as torch.save writes it: a pickle and one storage. `value` is a pickle without its first and last part."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr(f"{name}/data.pkl", b"\x80\x02" + (plain({"state": 1}) if value is None else value) + b".")
        archive.writestr(f"{name}/byteorder", b"little")
        archive.writestr(f"{name}/data/0", NUMBERS)
        archive.writestr(f"{name}/version", b"3\n")
    return raw.getvalue()


def plain(value: object) -> bytes:
    """Opcodes that make a plain value."""
    return pickle.dumps(value, 2)[2:-1]


def made(named: str, **state: bytes) -> bytes:
    """Opcodes that make an object with such attributes, each given by opcodes."""
    module, _, name = named.rpartition(".")
    items = b"".join(plain(key) + value for key, value in state.items())
    return f"c{module}\n{name}\n".encode() + b")\x81}(" + items + b"ub"


def arguments(ranks: int | None, *, only_model: bool = False) -> bytes:
    """The TrainingArguments as they are saved. `ranks` None: by a transformers that did not keep them."""
    state = plain(None) if ranks is None else made("accelerate.state.PartialState", num_processes=plain(ranks))
    return made(
        "transformers.training_args.TrainingArguments", save_only_model=plain(only_model), distributed_state=state
    )


def write_weights(folder: Path, kind: str) -> None:
    """`single`, `sharded`, `bin`, `adapter`, or none."""
    if kind == "single":
        write_safe(folder / "model.safetensors")
    elif kind == "sharded":
        write_sharded(folder)
    elif kind == "adapter":
        write_safe(folder / "adapter_model.safetensors")
    elif kind == "bin":
        (folder / "pytorch_model.bin").write_bytes(torch_bytes())


def write_trainer(
    directory: Path,
    step: int,
    *,
    ranks: int = 1,
    kind: str = "single",
    said_ranks: bool = True,
    only_model: bool = False,
) -> Path:
    """A checkpoint of the Trainer. Returns its folder."""
    folder = directory / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    write_weights(folder, kind)
    said = arguments(ranks if said_ranks else None, only_model=only_model)
    (folder / "training_args.bin").write_bytes(torch_bytes(said))
    if not only_model:
        (folder / "optimizer.pt").write_bytes(torch_bytes())
        (folder / "scheduler.pt").write_bytes(torch_bytes())
        for name in ["rng_state.pth"] if ranks == 1 else [f"rng_state_{rank}.pth" for rank in range(ranks)]:
            (folder / name).write_bytes(torch_bytes())
    state = {"global_step": step, "log_history": [{"loss": float("nan")}]}
    (folder / "trainer_state.json").write_text(json.dumps(state, indent=2))
    return aged(folder)


def aged(folder: Path) -> Path:
    """Files that were written at one time, so that no test depends on how quick it is."""
    for path in folder.rglob("*"):
        os.utime(path, (SAVED_AT_S, SAVED_AT_S), follow_symlinks=False)
    return folder
