"""Train a tiny model by transformers' Trainer, which saves; run by the interpreter that has it.

make_huggingface.py train FOLDER [KEY=VALUE...]   four steps, a save each two
make_huggingface.py ranks FOLDER COUNT            the same on so many processes, over gloo
make_huggingface.py resume CHECKPOINT             go on for two steps; prints the step it began with and the last one
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def trainer(folder: Path, **words):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    rows = [{"input_ids": torch.arange(8) % 7 + number, "labels": torch.arange(8) % 7} for number in range(16)]
    chosen = {"max_steps": 4, "save_steps": 2, "save_strategy": "steps", **words}
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, use_cpu=True, report_to=[], disable_tqdm=True, **chosen
    )
    return Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=rows)


def resume(checkpoint: Path) -> None:
    from transformers import TrainerCallback

    began = []

    class Begins(TrainerCallback):
        def on_train_begin(self, args, state, control, **_):
            began.append(state.global_step)

    resumed = trainer(checkpoint.parent / "resumed", max_steps=6)
    resumed.add_callback(Begins())
    resumed.train(resume_from_checkpoint=str(checkpoint))
    print(json.dumps({"began": began[0], "ended": resumed.state.global_step}))


def on_each_rank(count: str, *arguments: str) -> None:
    """By torchrun, which keeps its port from the start: one chosen before may be another's by then."""
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count)
    os.execv(sys.executable, [sys.executable, *launch, __file__, *arguments])


def main(what: str, folder: Path, *rest: str) -> None:
    if what == "train":
        trainer(folder, **{key: json.loads(value) for key, value in (word.split("=") for word in rest)}).train()
    elif what == "ranks":
        on_each_rank(rest[0], "train", str(folder))
    else:
        resume(folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
