"""What a vLLM server is asked, and what its answers say. Pure.

The interface is that of vLLM's server for completions (prompts and answers as token ids), and of its development endpoints,
without which a server's weights cannot be changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rl_api import RunSpec
from rl_api.errors import EndpointError, InvalidConfig
from rl_trainer.rollout.engines.base import GenerationRequest
from rl_trainer.rollout.engines.vllm_arguments import WORKER_EXTENSION

FIELD: Final = "spec.sampler.endpoint"
PROBE_TEMPERATURES: Final = (1.0, 0.25)
"""Between which the log-probs of any distribution but a flat one differ."""
SAME: Final = 1e-5
"""Log-probs that differ by less are equal but for rounding."""


@dataclass(frozen=True)
class EndpointOptions:
    """How a sampler asks its server.

    Attributes:
        url: of the server, without `/v1`.
        folder: into which weights are written.
        server_folder: the same one as the server sees it.
        key: sent with each request; None: the server wants none.
        timeout: seconds until each thing that is asked must have happened.
        seeded: each request draws with a generator of its own; see `VllmOptions.of`.
        cuts: the run samples with top-p or top-k.
    """

    url: str
    folder: Path
    server_folder: Path
    key: str | None = None
    timeout: float = 600.0
    seeded: bool = True
    cuts: bool = False

    @classmethod
    def of(cls, spec: RunSpec) -> EndpointOptions | None:
        """Those of a run's sampler; None: its engine is another. InvalidConfig where the key is not there."""
        sampler, endpoint = spec.sampler, spec.sampler.endpoint
        if endpoint is None:
            return None
        key, variable = None, endpoint.api_key_variable
        if variable is not None:
            key = os.environ.get(variable)
            if not key:
                raise InvalidConfig(
                    f"{FIELD}.apiKeyVariable: found {variable!r}, which is not set where the sampler runs; set it to the "
                    "server's key, or leave the field out"
                )
        return cls(
            endpoint.url.rstrip("/"),
            Path(endpoint.folder),
            Path(endpoint.server_folder or endpoint.folder),
            key,
            endpoint.timeout.seconds,
            seeded=not spec.buffer.max_staleness,
            cuts=sampler.top_p < 1.0 or sampler.top_k > 0,
        )


@dataclass(frozen=True)
class ServerFacts:
    """What a server says of itself.

    Attributes:
        model: its name for the model that it serves.
        context: most tokens of a sequence.
        extended: its workers have the methods of `vllm_worker.WorkerExtension`.
    """

    model: str
    context: int
    extended: bool


@dataclass(frozen=True)
class Piece:
    """What a server answers to one request: T tokens, their log-probs as in `GenerationResult`, and why there are no more;
    `abort`: the server was told to stop."""

    tokens: list[int]
    logprobs: list[float]
    reason: Literal["stop", "length", "abort"]


def served_model(url: str, models: Any) -> tuple[str, int]:
    """Its name, and most tokens of a sequence, of the answer to `/v1/models`. EndpointError where it is not vLLM's."""
    try:
        return str(models["data"][0]["id"]), int(models["data"][0]["max_model_len"])
    except (LookupError, TypeError, ValueError) as error:
        raise EndpointError(
            f"server {url}: its answer to /v1/models is not that of vLLM ({type(error).__name__}: {error})"
        ) from None


def weight_label(url: str, answer: Any) -> str:
    """What a server says that it holds, in the answer to `/weight_info`. EndpointError where it does not say."""
    try:
        return str(answer["weight_version"])
    except (LookupError, TypeError) as error:
        raise EndpointError(
            f"server {url}: its answer to /weight_info is not that of vLLM ({type(error).__name__}: {error})"
        ) from None


def probe_body(model: str, token: int, temperature: float = 1.0) -> dict[str, Any]:
    """The body of `/v1/completions` for one token after `token`, with the log-prob of the most probable one."""
    return {"model": model, "prompt": [token], "max_tokens": 1, "temperature": temperature, "logprobs": 1}


def check_logprobs(url: str, answers: Sequence[Any]) -> None:
    """Look at answers to the same probe at two temperatures.

    Raises:
        EndpointError: they hold no log-probs.
        InvalidConfig: those do not change with the temperature.
    """
    try:
        one, other = (max(answer["choices"][0]["logprobs"]["top_logprobs"][0].values()) for answer in answers)
    except (LookupError, TypeError, ValueError) as error:
        raise EndpointError(
            f"server {url}: an answer of /v1/completions lacks log-probs ({type(error).__name__}: {error})"
        ) from None
    if abs(one - other) < SAME:
        raise InvalidConfig(
            f"{FIELD}.url: found a server {url} whose log-probs are not of the sampling temperature; start it with "
            "--logprobs-mode processed_logprobs"
        )


def check_cuts(url: str, cuts: bool, extended: bool) -> None:
    """InvalidConfig where the run samples with a cut, and the server's log-probs are of what that leaves."""
    if cuts and not extended:
        raise InvalidConfig(
            f"{FIELD}.url: found a server {url} whose log-probs are of the tokens that top-p and top-k leave, allowed with "
            f"sampler.topP below 1 or sampler.topK: one that is started with --worker-extension-cls {WORKER_EXTENSION}"
        )


def completion_body(model: str, request: GenerationRequest, seeded: bool, salt: str) -> dict[str, Any]:
    """The body of `/v1/completions` for one request: its stop tokens and its length end it, and nothing else.

    Every parameter is said, as the server has defaults of its model's folder. `salt`: prompts share the cache of keys and
    values only where it is the same.
    """
    params = request.params
    return {
        "model": model,
        "prompt": request.prompt.tolist(),
        "max_tokens": params.max_new_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": request.generator_seed if seeded else None,
        "stop_token_ids": sorted(params.stop_token_ids),
        "ignore_eos": True,
        "logprobs": 0,  # of the sampled token alone
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,  # no text is made of them
        "cache_salt": salt,
    }


def read_completion(url: str, answer: Any) -> Piece:
    """What the answer of `/v1/completions` says. Raises EndpointError where it is not complete."""
    try:
        choice = answer["choices"][0]
        tokens = [int(token) for token in choice["token_ids"]]
        found = choice["logprobs"]
        logprobs = [float(value) for value in found["token_logprobs"]] if tokens else []
        reason = choice["finish_reason"]
    except (LookupError, TypeError, ValueError) as error:
        raise EndpointError(
            f"server {url}: an answer of /v1/completions lacks token ids or log-probs ({type(error).__name__}: {error}); "
            "it must be vLLM's, which can return both"
        ) from None
    if len(logprobs) != len(tokens):
        raise EndpointError(f"server {url}: an answer has {len(tokens)} tokens and {len(logprobs)} log-probs")
    if reason not in ("stop", "length", "abort"):
        raise EndpointError(f"server {url}: it gave a sequence up ({reason})")
    return Piece(tokens, logprobs, reason)


def refused(url: str, path: str, status: int, text: str) -> EndpointError | InvalidConfig:
    """What an answer with a status of 400 to 499 means; `text`: its body."""
    if status in (401, 403):
        return InvalidConfig(
            f"{FIELD}.apiKeyVariable: server {url} answers {status}; name the variable that holds its key"
        )
    if status == 404 and not path.startswith("/v1/"):
        return InvalidConfig(
            f"{FIELD}.url: found a server {url} without {path.partition('?')[0]}, by which weights are changed; start "
            "vLLM's server with VLLM_SERVER_DEV_MODE=1"
        )
    words = " ".join(text.split())
    return EndpointError(
        f"server {url}: {path.partition('?')[0]} is refused ({status}: {words[:300] or 'no reason given'})"
    )


def vocabulary_of(config: Mapping[str, Any]) -> int:
    """Token ids of a model, by its folder's config.json. EndpointError where that does not say."""
    text = config.get("text_config")
    found = (text if isinstance(text, Mapping) else config).get("vocab_size")
    if not isinstance(found, int):
        raise EndpointError(
            "model folder: config.json has no vocab_size to hold against that of the server's model"
        )
    return found
