"""Write and judge safetensors files by the library itself; run by the interpreter that has it.

make_safetensors.py save FOLDER     one file of every type, and a model in shards with its index
make_safetensors.py judge FOLDER    prints what the library says of each file, as JSON: "" for one that it reads
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import safetensors
from safetensors import torch as written

KINDS = (
    "bool", "uint8", "int8", "float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "int16", "uint16", "float16", "bfloat16", "int32", "uint32", "float32", "int64", "uint64", "float64", "complex64",
)  # fmt: skip


def save(folder: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    tensors = {kind: torch.zeros((3, 5), dtype=getattr(torch, kind)) for kind in KINDS}
    more = {"scalar": torch.tensor(1.5), "empty": torch.zeros(0, 4), "line\nbreak": torch.zeros(2)}
    packed = torch.zeros((2, 3), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    folder.mkdir(parents=True)
    written.save_file({**tensors, **more, "packed": packed}, folder / "kinds.safetensors", metadata={"format": "pt"})
    config = GPT2Config(vocab_size=64, n_positions=8, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(folder / "sharded", max_shard_size="40KB")
    GPT2LMHeadModel(config).save_pretrained(folder / "single")


def judge(folder: Path) -> None:
    said = {}
    for path in sorted(folder.iterdir()):
        try:
            safetensors.deserialize(path.read_bytes())
            said[path.name] = ""
        except safetensors.SafetensorError as error:
            said[path.name] = str(error)[:200]
    print(json.dumps(said))


if __name__ == "__main__":
    {"save": save, "judge": judge}[sys.argv[1]](Path(sys.argv[2]))
