"""The Hugging Face library's `generate` behind `peer_loop`: peer_generate.py FOLDER SLOTS THREADS."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from peer_loop import serve


def prepare() -> Callable[[dict[str, Any]], dict[str, Any]]:
    import torch
    import transformers

    torch.set_num_threads(int(sys.argv[3]))
    slots = int(sys.argv[2])
    transformers.utils.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    model.generation_config = transformers.GenerationConfig(
        do_sample=True, top_k=0, pad_token_id=0
    )  # no end token

    class Lengths(transformers.StoppingCriteria):
        """Ends each sequence at its own length; the batch goes on until the last has ended."""

        def __init__(self, ends: torch.Tensor) -> None:
            self.ends = ends

        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            return input_ids.shape[1] >= self.ends

    @torch.inference_mode()
    def run(request: dict[str, Any]) -> dict[str, Any]:
        prompts, lengths = torch.tensor(request["prompts"]), torch.tensor(request["lengths"])
        start = time.perf_counter()
        for first in range(0, len(prompts), slots):
            batch, wanted = prompts[first : first + slots], lengths[first : first + slots]
            tail = len(set(wanted.tolist())) > 1
            criteria = [Lengths(wanted + batch.shape[1])] if tail else []
            made = model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=int(wanted.max()),
                stopping_criteria=transformers.StoppingCriteriaList(criteria),
            )
            assert made.shape[1] == batch.shape[1] + int(wanted.max())
        return {"seconds": time.perf_counter() - start, "lengths": request["lengths"]}

    return run


if __name__ == "__main__":
    serve(prepare)
