"""The training step of TRL's GRPOTrainer behind `peer_loop`: peer_trl_step.py MODEL-FOLDER THREADS LEARNING-RATE.

Runs in bench/.venv-trl. A request is a batch as the trainer's own generation would hand it over: prompts padded on the left,
completions on the right. Timed are its `training_step` (forward, loss, backward) for every part of the batch, the clipping
of the gradient and the optimizer's step; nothing of its loop, its data loader or its logging. `parts`: in how many passes
(`gradient_accumulation_steps`) the batch is computed; TRL pads before it cuts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from peer_loop import serve


def prepare() -> Callable[[dict[str, Any]], dict[str, Any]]:
    import datasets
    import torch
    import transformers
    import trl

    folder, threads, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(threads)
    transformers.utils.logging.disable_progress_bar()
    scratch = tempfile.mkdtemp()

    class Trainer(trl.GRPOTrainer):  # type: ignore[name-defined, misc]
        """Takes the batch as it is given instead of generating one."""

        def _prepare_inputs(self, generation_batch: dict[str, Any]) -> dict[str, Any]:
            return generation_batch

    def make(batch: int, parts: int, longest: int) -> Trainer:
        trainer = Trainer(
            model=folder,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=trl.GRPOConfig(
                output_dir=scratch,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                model_init_kwargs={"dtype": "float32"},
                per_device_train_batch_size=batch // parts,
                gradient_accumulation_steps=parts,
                num_generations=batch // parts,
                max_completion_length=longest,
                temperature=1.0,
                beta=0.0,
                # The factor that CISPO bounds is 1 in the first update of a batch: no bound is met.
                loss_type="cispo",
                epsilon_high=5.0,
                learning_rate=rate,
                lr_scheduler_type="constant",
                max_steps=1_000_000,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=datasets.Dataset.from_list([{"prompt": "1"}] * batch),
            processing_class=transformers.AutoTokenizer.from_pretrained(folder, padding_side="left"),
        )
        trainer.create_optimizer_and_scheduler(num_training_steps=1_000_000)
        trainer.model, trainer.optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
        trainer.model_wrapped = trainer.model
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = parts
        return trainer

    def padded(rows: list[list[int]], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(map(len, rows))
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros(len(rows), width, dtype=torch.long)
        for row, tokens in enumerate(rows):
            place = slice(width - len(tokens), width) if left else slice(0, len(tokens))
            ids[row, place], mask[row, place] = torch.tensor(tokens), 1
        return ids, mask

    state: dict[str, Trainer] = {}

    def run(request: dict[str, Any]) -> dict[str, Any]:
        parts, count = request["parts"], len(request["prompts"])
        if request["fresh"]:
            state["trainer"] = make(count, parts, max(map(len, request["completions"])))
        trainer = state["trainer"]
        prompt_ids, prompt_mask = padded(request["prompts"], left=True)
        completion_ids, completion_mask = padded(request["completions"], left=False)
        whole = {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": completion_ids,
            "completion_mask": completion_mask,
            "advantages": torch.tensor(request["advantages"]),
        }
        items = completion_mask.sum()
        cut = [
            {name: value[start : start + count // parts] for name, value in whole.items()}
            | {"num_items_in_batch": items}
            for start in range(0, count, count // parts)
        ]
        seconds, losses = [], []
        for _ in range(request["steps"]):
            start = time.perf_counter()
            loss = 0.0
            for part in cut:
                # The trainer's loop says so of the last part; gradients are summed either way on one device.
                loss += float(trainer.training_step(trainer.model, part, num_items_in_batch=None))
            trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), trainer.args.max_grad_norm)
            trainer.optimizer.step()
            trainer.lr_scheduler.step()
            trainer.model.zero_grad()
            seconds.append(time.perf_counter() - start)
            losses.append(loss)
        return {"seconds": seconds, "losses": losses}

    return run


if __name__ == "__main__":
    serve(prepare)
