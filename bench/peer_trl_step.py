"""The training step of TRL's GRPOTrainer behind `peer_loop`: peer_trl_step.py MODEL-FOLDER THREADS LEARNING-RATE.

Runs in bench/.venv-trl. A request is a batch as the trainer's own generation would hand it over: prompts padded on the left,
completions on the right. Timed are its `training_step` (forward, loss, backward) for every part of the batch, the clipping
of the gradient and the optimizer's step; nothing of its loop, its data loader or its logging. `parts`: in how many passes
(`gradient_accumulation_steps`) the batch is computed; TRL pads before it cuts.

As several ranks (`rank_loop`, by `accelerate launch --use_fsdp --fsdp_version 2`) each has as many of the batch's sequences,
which it pads by itself.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from rank_loop import RANK, RANKS, serve_ranks, timed


def divide_on_cpu() -> None:
    """Lets accelerate divide models over ranks without accelerators.

    Its state takes FSDP for accelerators only (1.15.0), though its FSDP2 and gloo work on CPUs: for a moment, ranks are of a
    kind that it takes it for.
    """
    from accelerate.state import AcceleratorState, DistributedType, PartialState

    PartialState(cpu=True).distributed_type = DistributedType.MULTI_XPU
    AcceleratorState._reset_state()


def prepare() -> Callable[[dict[str, Any]], dict[str, Any]]:
    import datasets
    import torch
    import transformers
    import trl
    from torch.distributed.fsdp import FSDPModule

    folder, threads, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(threads)
    transformers.utils.logging.disable_progress_bar()
    scratch = tempfile.mkdtemp()

    if RANKS > 1:
        torch.distributed.init_process_group("gloo")

    class Trainer(trl.GRPOTrainer):  # type: ignore[name-defined, misc]
        """Takes the batch as it is given instead of generating one."""

        def _prepare_inputs(self, generation_batch: dict[str, Any]) -> dict[str, Any]:
            return generation_batch

    def make(batch: int, parts: int, longest: int) -> Trainer:
        options = trl.GRPOConfig(
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
        )
        if RANKS > 1:
            divide_on_cpu()
        trainer = Trainer(
            model=folder,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=options,
            train_dataset=datasets.Dataset.from_list([{"prompt": "1"}] * batch),
            processing_class=transformers.AutoTokenizer.from_pretrained(folder, padding_side="left"),
        )
        trainer.create_optimizer_and_scheduler(num_training_steps=1_000_000)
        trainer.model, trainer.optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
        if RANKS > 1 and not isinstance(trainer.model, FSDPModule):
            raise RuntimeError(
                f"accelerate made a {type(trainer.model).__name__} of the model, which is not divided"
            )
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
        parts = request["parts"]
        count = len(request["prompts"]) // RANKS
        mine = slice(RANK * count, (RANK + 1) * count)
        if request["fresh"]:
            state["trainer"] = make(count, parts, max(map(len, request["completions"])))
        trainer = state["trainer"]
        prompt_ids, prompt_mask = padded(request["prompts"][mine], left=True)
        completion_ids, completion_mask = padded(request["completions"][mine], left=False)
        whole = {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": completion_ids,
            "completion_mask": completion_mask,
            "advantages": torch.tensor(request["advantages"][mine]),
        }
        items = torch.tensor(sum(map(len, request["completions"])))
        cut = [
            {name: value[start : start + count // parts] for name, value in whole.items()}
            | {"num_items_in_batch": items}
            for start in range(0, count, count // parts)
        ]

        def step() -> float:
            loss = 0.0
            for index, part in enumerate(cut):
                # As the trainer's loop: gradients are added up over ranks in the last part.
                last = index == len(cut) - 1
                with nullcontext() if last else trainer.accelerator.no_sync(trainer.model):
                    loss += float(trainer.training_step(trainer.model, part, num_items_in_batch=None))
            trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), trainer.args.max_grad_norm)
            trainer.optimizer.step()
            trainer.lr_scheduler.step()
            trainer.model.zero_grad()
            return loss

        seconds, losses = [], []
        for _ in range(request["steps"]):
            took, loss = timed(step)
            seconds.append(took)
            losses.append(float(trainer.accelerator.reduce(torch.tensor(loss), "mean")))
        return {"seconds": seconds, "losses": losses}

    return run


if __name__ == "__main__":
    serve_ranks(prepare)
