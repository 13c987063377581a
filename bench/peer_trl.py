"""TRL's GRPOTrainer behind `peer_loop`: peer_trl.py FOLDER. Runs in bench/.venv-trl.

FOLDER holds `prompts.jsonl` and one model folder per case. A request names a case and a number of steps; the trainer of the
case goes on where it stood, so that only its first request pays for starting up. What a request costs is timed
from the beginning of its first step to the beginning of the step after its last: loading of prompts, logging and the like
are inside.
"""

from __future__ import annotations

import json
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer_loop import serve

DEADLINE = 300.0


def prepare() -> Callable[[dict[str, Any]], dict[str, Any]]:
    import datasets
    import torch
    import transformers
    import trl

    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(threads)
    transformers.utils.logging.disable_progress_bar()
    prompts = datasets.Dataset.from_list(
        [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    )
    scratch = tempfile.mkdtemp()

    class Case(transformers.TrainerCallback):
        """A trainer on its own thread that stands still between two requests.

        `config`: fields of GRPOConfig in place of those for CPUs; `lora`: fields of peft's LoraConfig, None: all weights
        learn.
        """

        def __init__(
            self,
            model: str,
            max_new_tokens: int,
            prompts_per_step: int,
            group_size: int,
            config: dict[str, Any],
            lora: dict[str, Any] | None,
        ) -> None:
            self.requests: queue.Queue[int] = queue.Queue()
            self.answers: queue.Queue[dict[str, Any] | BaseException] = queue.Queue()
            self.left: int | None = None
            self.seconds = 0.0
            self.lengths: list[int] = []
            settings = {
                "use_cpu": True,
                "bf16": False,
                "gradient_checkpointing": False,
                "model_init_kwargs": {"dtype": "float32"},
                "per_device_train_batch_size": prompts_per_step * group_size,
                **config,
            }
            options = {}
            if lora is not None:
                import peft

                options["peft_config"] = peft.LoraConfig(task_type="CAUSAL_LM", **lora)
            settled = trl.GRPOConfig(
                output_dir=scratch,
                num_generations=group_size,
                max_completion_length=max_new_tokens,
                temperature=1.0,
                beta=0.0,
                learning_rate=1e-6,
                max_steps=1_000_000,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                **settings,
            )
            self.trainer = trl.GRPOTrainer(
                model=str(folder / model),
                reward_funcs=self.reward,
                args=settled,
                train_dataset=prompts,
                processing_class=transformers.AutoTokenizer.from_pretrained(
                    folder / model, padding_side="left"
                ),
                callbacks=[self],
                **options,
            )
            threading.Thread(target=self.train, daemon=True).start()

        def train(self) -> None:
            try:
                torch.set_num_threads(threads)
                self.trainer.train()
            except BaseException as error:
                self.answers.put(error)

        def reward(
            self, completions: list[str], answer: list[str], completion_ids: list[Any], **_: Any
        ) -> list[float]:
            self.lengths += [len(ids) for ids in completion_ids]
            return [fraction_right(text, right) for text, right in zip(completions, answer, strict=True)]

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if self.left == 0:
                seconds = time.perf_counter() - self.started
                self.answers.put({"seconds": seconds, "lengths": self.lengths, **memory()})
                self.left = None
            if self.left is None:
                self.left = self.requests.get()
                self.lengths = []
                self.started = time.perf_counter()
            self.left -= 1

        def run(self, steps: int, deadline: float) -> dict[str, Any]:
            self.requests.put(steps)
            answer = self.answers.get(timeout=deadline)
            if isinstance(answer, BaseException):
                raise answer
            return answer

    def memory() -> dict[str, int]:
        """The highest that torch had of a GPU, and what all have of it now, in bytes; 0 without one."""
        if not torch.cuda.is_available():
            return {"bytes": 0, "used": 0}
        free, total = torch.cuda.mem_get_info()
        return {"bytes": torch.cuda.max_memory_allocated(), "used": total - free}

    cases: dict[str, Case] = {}

    def run(request: dict[str, Any]) -> dict[str, Any]:
        name = request["case"]
        if name not in cases:
            cases[name] = Case(
                request["model"],
                request["maxNewTokens"],
                request["promptsPerStep"],
                request["groupSize"],
                request.get("config", {}),
                request.get("lora"),
            )
        return cases[name].run(request["steps"], request.get("deadline", DEADLINE))

    return run


def fraction_right(completion: str, answer: str) -> float:
    """Share of characters that are right and in place, of the longer text: rltrain's rule `fraction`."""
    completion, answer = completion.strip(), answer.strip()
    longest = max(len(completion), len(answer))
    return sum(a == b for a, b in zip(completion, answer, strict=False)) / longest if longest else 1.0


if __name__ == "__main__":
    serve(prepare)
