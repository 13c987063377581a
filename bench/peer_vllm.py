"""vLLM on CPU behind `peer_loop`: peer_vllm.py FOLDER SLOTS. Runs in bench/.venv-vllm."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from peer_loop import serve


def prepare() -> Callable[[dict[str, Any]], dict[str, Any]]:
    from vllm import LLM, SamplingParams

    folder, slots, eager = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "eager"
    engine = LLM(
        model=folder,
        skip_tokenizer_init=True,
        dtype="float32",
        max_num_seqs=slots,
        max_model_len=256,
        enforce_eager=eager,
        disable_log_stats=True,
    )

    def run(request: dict[str, Any]) -> dict[str, Any]:
        prompts = [{"prompt_token_ids": prompt} for prompt in request["prompts"]]
        params = [
            SamplingParams(temperature=1.0, max_tokens=length, ignore_eos=True, detokenize=False)
            for length in request["lengths"]
        ]
        start = time.perf_counter()
        outputs = engine.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "lengths": [len(output.outputs[0].token_ids) for output in outputs]}

    return run


if __name__ == "__main__":
    serve(prepare)
