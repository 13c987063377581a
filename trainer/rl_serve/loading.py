"""From a verified model folder to a generator that answers, or to other weights in one that does. No Ray."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch

from rl_api.errors import ModelError
from rl_serve.admission import Admission
from rl_serve.arguments import PolicyRef
from rl_serve.generation import Generator
from rl_serve.prefill import LEAST_TOKENS, Prefill
from rl_serve.requests import MOST_SEQUENCES, Limits
from rl_trainer.model.config import read_json
from rl_trainer.model.export import TOKENIZER_FILES
from rl_trainer.model.folder import read_tensors
from rl_trainer.model.tokenizer import Tokenizer, load_tokenizer
from rl_trainer.rollout.engines.base import Engine, GenerationRequest, SamplingParams
from rl_trainer.rollout.engines.create import create_engine
from rl_trainer.rollout.engines.vllm_needs import ONE_DEVICE, EngineKind, VllmOptions

# Sequences that a replica generates at once.
SLOTS: Final = {"cpu": 32, "cuda": 128}
# What a configuration says of how it was written, and nothing of the model.
_NO_MATTER: Final = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache")

Shape = Mapping[str, Any]


@dataclass(frozen=True)
class Serving:
    """How policies are served, whichever it is.

    Attributes:
        name: the model's, for clients.
        max_context: most tokens of a prompt with its answer; the model may hold fewer.
        max_new_tokens: most tokens of an answer.
        queue: sequences that may wait.
        timeout: seconds that a request may take.
        threads: CPU threads.
        device: `cpu` or `cuda`.
        answers: what becomes of answers under way when the policy changes, see `rl_serve.arguments`.
        engine: what generates. vLLM takes a GPU's whole memory, so with it weights change in place: `answers` is stamp, or
            there is one policy.
        vllm: how vLLM is opened.
    """

    name: str
    max_context: int
    max_new_tokens: int
    queue: int
    timeout: float
    threads: int = 1
    device: str = "cpu"
    answers: Literal["finish", "stamp"] = "finish"
    engine: EngineKind = "torch"
    vllm: VllmOptions = ONE_DEVICE


@dataclass(frozen=True)
class Setup:
    """What every replica is told.

    Attributes:
        serving: how policies are served.
        gpu: whether it has one.
        keys: digests of API keys, None: everyone may ask. `keys_folder`: where they are, instead.
        control: name of the application that verifies policies and hears of what was answered; empty: policies lie on this
            machine and were verified.
        service: its name, for metrics.
        requests_per_second, requests_per_second_per_key: of all replicas together; None: any number.
        least_prefill: tokens of a prompt from which on copies for prompts compute it, where there are some.
    """

    serving: Serving
    gpu: bool = False
    keys: frozenset[str] | None = None
    keys_folder: Path | None = None
    control: str = ""
    service: str = ""
    requests_per_second: float | None = None
    requests_per_second_per_key: float | None = None
    least_prefill: int = LEAST_TOKENS


class Loader:
    """Loads policies while others go on; used on the event loop of the requests.

    Args:
        serving: how they are served.
        opened: the policy's folder on this machine, as long as it is needed.
        prefill: who computes prompts; None: who answers them.
    """

    def __init__(
        self,
        serving: Serving,
        opened: Callable[[PolicyRef], Awaitable[AbstractContextManager[Path]]],
        prefill: Prefill | None = None,
    ) -> None:
        self._serving, self._opened, self._prefill = serving, opened, prefill
        # One for all engines: answers that finish on an old one take places of the new.
        self.admission = Admission(SLOTS[serving.device], serving.queue, serving.timeout)
        self._shape: Shape = {}

    async def __call__(self, policy: PolicyRef, current: Generator | None) -> Generator:
        """A generator with this policy: a new one, or `current` with other weights.

        Raises:
            ModelError, CheckpointError: it cannot be loaded.
            DeadlineExceeded: nobody could be asked for it.
        """
        place = await self._opened(policy)
        if current is not None and self._serving.answers == "stamp":
            tensors = await asyncio.to_thread(self._read, place, policy)
            await current.swap(tensors, policy.version)
            return current
        if current is not None and self._serving.engine == "vllm":
            raise ModelError(
                f"{policy.version}: vLLM leaves no room for a second policy beside {current.version}; take answers stamp, "
                "or another cluster for it"
            )
        engine, tokenizer, shape = await asyncio.to_thread(self._load, place)
        self._shape = shape
        serving = self._serving
        limits = Limits(
            serving.name,
            engine.context,
            min(serving.max_new_tokens, engine.context - 1),
            min(MOST_SEQUENCES, self.admission.slots),
        )
        return Generator(
            engine, tokenizer, limits, self.admission, serving.timeout, policy.version, self._prefill
        )

    def free(self) -> None:
        """Give back what an engine that was closed has held."""
        gc.collect()
        if self._serving.device == "cuda":
            torch.cuda.empty_cache()

    def _load(self, place: AbstractContextManager[Path]) -> tuple[Engine, Tokenizer, Shape]:
        """Engine and tokenizer, both used once: the first request is as fast as any other."""
        serving = self._serving
        torch.set_num_threads(serving.threads)
        with place as folder:
            tokenizer = load_tokenizer(folder)
            engine = create_engine(
                folder,
                slots=SLOTS[serving.device],
                kind=serving.engine,
                dtype=torch.float32 if serving.device == "cpu" else torch.bfloat16,
                device=serving.device,
                options=serving.vllm,
            )
            shape = shape_of(folder)
        engine.context = min(engine.context, serving.max_context)
        engine.add([GenerationRequest("warm", np.zeros(2, np.int32), SamplingParams(2))])
        while engine.active or engine.waiting:
            engine.step()
        if tokenizer.has_chat_template:
            tokenizer.encode_chat([{"role": "user", "content": ""}])
        return engine, tokenizer, shape

    @property
    def _instead(self) -> str:
        """How a policy of another shape can be served."""
        if self._serving.engine == "vllm":
            return "serve it by a service of its own, or with promotion.strategy newCluster"
        return "take answers finish"

    def _read(self, place: AbstractContextManager[Path], policy: PolicyRef) -> dict[str, torch.Tensor]:
        with place as folder:
            if name := difference(self._shape, shape_of(folder)):
                raise ModelError(
                    f"{policy.version}: its {name} is another one than that of the policy that is served; with answers "
                    f"stamp only weights may change: {self._instead}"
                )
            return read_tensors(folder)


def shape_of(folder: Path) -> Shape:
    """What two policies must have in common for one engine to change from the one's weights to the other's."""
    config = {f"config.json: {name}": value for name, value in read_json(folder / "config.json").items()}
    files = {}
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            files[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return {
        name: value for name, value in config.items() if name.partition(": ")[2] not in _NO_MATTER
    } | files


def difference(one: Shape, other: Shape) -> str:
    """The first thing that is not the same; empty: there is none."""
    for name in sorted(one.keys() | other.keys()):
        if json.dumps(one.get(name), sort_keys=True) != json.dumps(other.get(name), sort_keys=True):
            return name
    return ""
