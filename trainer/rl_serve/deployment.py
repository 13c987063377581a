"""The Ray Serve application: replicas, each with an engine of its own, behind one HTTP port."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import ray
import torch
from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import ApplicationStatus, LoggingConfig, ReplicaState
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from rl_api.errors import RLTrainError
from rl_serve.admission import Admission
from rl_serve.errors import ApiError
from rl_serve.generation import Generator
from rl_serve.http import Api
from rl_serve.requests import Limits
from rl_trainer.model.tokenizer import Tokenizer, load_tokenizer
from rl_trainer.rollout.engines.base import Engine, GenerationRequest, SamplingParams
from rl_trainer.rollout.engines.create import create_engine

APPLICATION: Final = "rltrain"
# Sequences that a replica generates at once.
SLOTS: Final = {"cpu": 32, "cuda": 128}
# All requests get to a replica, which says no by itself: Ray Serve would let them wait, or refuse them in its own words.
_ALL: Final = 1_000_000


@dataclass(frozen=True)
class Setup:
    """What every replica is told.

    Attributes:
        folder: Hugging Face folder, readable on this machine.
        name, version: of the policy, for clients.
        max_context: most tokens of a prompt with its answer; the model may hold fewer.
        max_new_tokens: most tokens of an answer.
        queue: sequences that may wait, for each replica.
        timeout: seconds that a request may take.
        keys: digests of API keys.
        threads: CPU threads of a replica.
        gpu: whether it has one.
    """

    folder: Path
    name: str
    version: str
    max_context: int
    max_new_tokens: int
    queue: int
    timeout: float
    keys: frozenset[str]
    threads: int
    gpu: bool


class PolicyReplica:
    """One replica. Where the model cannot be loaded it answers everything with the sentence that says why."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._api: Api | None = None
        self._error: ApiError | None = None
        try:
            self._engine, self._tokenizer = _load(setup)
        except RLTrainError as error:
            self._error = ApiError(str(error), status=500, code="model_error")

    async def __call__(self, request: HttpRequest) -> Response:
        """Answer one HTTP request."""
        if self._error is not None:
            return Response(
                self._error.message, self._error.status, {"x-model-error": "1"}, media_type="text/plain"
            )
        if self._api is None:
            self._api = self._open()
        return await self._api(request)

    def check_health(self) -> None:
        """Called by Ray Serve now and then; a replica that raises is replaced."""
        if self._api is not None and self._api.generator.failure:
            raise RuntimeError(self._api.generator.failure)

    def _open(self) -> Api:
        """On the event loop that requests come in on: it is not there yet when the replica is made."""
        setup, engine = self._setup, self._engine
        admission = Admission(engine.slots, setup.queue)
        limits = Limits(
            setup.name, engine.context, min(setup.max_new_tokens, engine.context - 1), admission.places
        )
        generator = Generator(engine, self._tokenizer, limits, admission, setup.timeout)
        return Api(generator, setup.version, setup.keys)


def _load(setup: Setup) -> tuple[Engine, Tokenizer]:
    """Engine and tokenizer, both used once: the first request is as fast as any other."""
    device = "cuda" if setup.gpu and ray.get_gpu_ids() else "cpu"
    torch.set_num_threads(setup.threads)
    tokenizer = load_tokenizer(setup.folder)
    engine = create_engine(
        setup.folder,
        slots=SLOTS[device],
        dtype=torch.float32 if device == "cpu" else torch.bfloat16,
        device=device,
    )
    engine.context = min(engine.context, setup.max_context)
    engine.add([GenerationRequest("warm", np.zeros(2, np.int32), SamplingParams(2))])
    while engine.active or engine.waiting:
        engine.step()
    if tokenizer.has_chat_template:
        tokenizer.encode_chat([{"role": "user", "content": ""}])
    return engine, tokenizer


def start(setup: Setup, host: str, port: int, replicas: int) -> None:
    """Start Ray Serve and give it the application; does not wait for the replicas. Ray is there already."""
    quiet = LoggingConfig(log_level="ERROR", enable_access_log=False)
    serve.start(
        proxy_location="HeadOnly", http_options=HTTPOptions(host=host, port=port), logging_config=quiet
    )
    deployment = serve.deployment(PolicyReplica).options(
        name="policy",
        num_replicas=replicas,
        max_ongoing_requests=_ALL,
        ray_actor_options={"num_cpus": 1, "num_gpus": 1 if setup.gpu else 0},
        logging_config=quiet,
    )
    serve.run_many(
        [serve.RunTarget(deployment.bind(setup), name=APPLICATION, route_prefix="/")],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


def failure() -> str:
    """Why the application will not run, in Ray Serve's words; empty: nothing of the kind is known."""
    found: Any = serve.status().applications.get(APPLICATION)
    if found is None or found.status != ApplicationStatus.DEPLOY_FAILED:
        return ""
    return str(found.message)


def running_replicas() -> int:
    """Replicas that answer."""
    found: Any = serve.status().applications.get(APPLICATION)
    if found is None or "policy" not in found.deployments:
        return 0
    return int(found.deployments["policy"].replica_states.get(ReplicaState.RUNNING, 0))
