"""Plain Ray Serve with the library's `generate`, as Ray's tutorial on streaming batches has it: peer_serve.py FOLDER PORT.

One deployment: requests that wait are put together (`serve.batch`, up to 64), and the library streams the batch's tokens. It
speaks as much of OpenAI's /v1/completions as the benchmark asks for.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from queue import Empty, Queue
from typing import Any

import torch
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from transformers import AutoModelForCausalLM, AutoTokenizer

SLOTS = 64


class TokenStreamer:
    """What `generate` puts the tokens of a batch into, a list for each step; None is the end."""

    def __init__(self) -> None:
        self.queue: Queue[list[int] | None] = Queue()
        self._prompt = True

    def put(self, values: Any) -> None:
        if self._prompt:
            self._prompt = False
        else:
            self.queue.put(values.tolist())

    def end(self) -> None:
        self.queue.put(None)


@serve.deployment(max_ongoing_requests=1000)
class Completions:
    """The model, and its routes."""

    def __init__(self, folder: str) -> None:
        torch.set_num_threads(1)
        self._tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._model.generation_config.do_sample = False

    async def __call__(self, request: Request) -> Any:
        if request.method == "GET":
            return JSONResponse({"data": [{"id": "policy"}]})
        return StreamingResponse(self._events(await request.json()), media_type="text/event-stream")

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        tokens = 0
        async for token in self._batch((body["prompt"], body["max_tokens"])):
            tokens += 1
            text = self._tokenizer.decode([token])
            yield f"data: {json.dumps({'choices': [{'index': 0, 'text': text}]})}\n\n"
        yield f"data: {json.dumps({'choices': [], 'usage': {'completion_tokens': tokens}})}\n\n"
        yield "data: [DONE]\n\n"

    @serve.batch(max_batch_size=SLOTS, batch_wait_timeout_s=0.01)
    async def _batch(self, requests: list[tuple[str, int]]) -> AsyncIterator[list[int]]:
        streamer = TokenStreamer()
        longest = max(tokens for _, tokens in requests)
        work = asyncio.get_running_loop().run_in_executor(
            None, self._generate, [prompt for prompt, _ in requests], longest, streamer
        )
        while True:
            try:
                step = streamer.queue.get_nowait()
            except Empty:
                if work.done():
                    work.result()
                await asyncio.sleep(0.0005)
                continue
            if step is None:
                return
            yield step

    def _generate(self, prompts: list[str], tokens: int, streamer: TokenStreamer) -> None:
        inputs = self._tokenizer(prompts, return_tensors="pt", padding=True)
        with torch.inference_mode():
            self._model.generate(
                inputs.input_ids,
                attention_mask=inputs.attention_mask,
                max_new_tokens=tokens,
                streamer=_Batches(streamer),
            )


class _Batches:
    """The library's greedy search calls `put` with a whole batch."""

    def __init__(self, streamer: TokenStreamer) -> None:
        self.put, self.end = streamer.put, streamer.end


if __name__ == "__main__":
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    serve.run(Completions.bind(sys.argv[1]), name="peer", route_prefix="/")
    while True:
        time.sleep(3600)
