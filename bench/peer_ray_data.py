"""Batch inference with Ray Data and transformers: peer_ray_data.py MODEL INPUT OUTPUT MAX_NEW_TOKENS BATCH."""

from __future__ import annotations

import os
import sys
from typing import Any

import ray


class Predictor:
    """One copy of the model; a batch ends when the longest of its answers does."""

    def __init__(self, model: str, longest: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(model).eval()
        self.longest = longest
        torch.set_num_threads(1)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import torch

        asked = self.tokenizer(batch["prompt"].tolist(), return_tensors="pt", padding=True)
        with torch.inference_mode():
            made = self.model.generate(
                input_ids=asked["input_ids"],
                attention_mask=asked["attention_mask"],
                do_sample=True,
                top_k=0,
                max_new_tokens=self.longest,
            )
        new = made[:, asked["input_ids"].shape[1] :]
        ends = (new == self.tokenizer.eos_token_id).int()
        lengths = torch.where(ends.any(1), ends.argmax(1) + 1, new.shape[1])
        batch["completion"] = self.tokenizer.batch_decode(new, skip_special_tokens=True)
        batch["completion_tokens"] = lengths.numpy()
        return batch


def main() -> None:
    model, source, target, longest, size = sys.argv[1:]
    ray.init(logging_level="ERROR", log_to_driver=False, include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    data = ray.data.read_json(source, lines=True)
    answered = data.map_batches(
        Predictor,
        fn_constructor_args=(os.path.abspath(model), int(longest)),
        batch_size=int(size),
        compute=ray.data.ActorPoolStrategy(size=1),
        num_cpus=1,
    )
    answered.write_json(os.path.abspath(target))


if __name__ == "__main__":
    main()
