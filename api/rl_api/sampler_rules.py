"""Rules of how a sampler's engine is opened. See `rl_api.rules`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from rl_api.allow import WITHOUT_V1, any_matches
from rl_api.place_rules import AS_THE_SERVER_SEES_IT, DOTS, MOUNTED, MOUNTED_AT
from rl_api.problems import Problem, spec_problem
from rl_api.roles import RESERVED_VARIABLES
from rl_api.run import RunSpec

OF_VLLM: Final = {
    "pipelineParallelSize": ("1", 1),
    "podsPerReplica": ("1", 1),
    "gpuMemoryUtilization": ("null", None),
    "maxModelLen": ("null", None),
    "quantization": ("none", "none"),
}
"""Fields of `sampler` that are vLLM's alone, and what they are with another engine: for people, and as a value."""

ONE_RUN_AT_A_TIME: Final = "allowed in a profile: torch or vllm, as a server has the weights of one run"
NO_SERVER: Final = "found an object, allowed in a profile: null, as a server has the weights of one run"
OUR_SAMPLERS: Final = "as only rltrain's own samplers ask a server"
CLAIM_OF_BOTH: Final = (
    "missing, required on a cluster: a claim that the server has mounted as well, for the weights"
)
ROOM_FOR_BOTH: Final = "which it must hold beside a prompt"
FROM_BFLOAT16: Final = "as vLLM quantises bfloat16"
ONE_SERVER: Final = "as one server has the weights of one version"
OF_THE_SERVER: Final = "as the server has its devices"
OF_ENDPOINT: Final = "as only endpoint has one"
URL_AND_FOLDER: Final = "missing, required with engine endpoint: url and folder"
_RESERVED: Final = ", ".join(RESERVED_VARIABLES)
NOT_OURS: Final = f"allowed: a name other than {_RESERVED}, as those are rltrain's, Ray's or the devices' own"
OVER_PODS: Final = " / podsPerReplica"
EVERY_PART: Final = "as each part of the model takes one"
WHOLE_STAGES: Final = "as each pod has whole stages, whose parts need fast links"
STAGES_UNSEALED: Final = (
    "allowed with scheduling.encryption: 1, as what the stages of a sampler tell each other is not encrypted"
)


def vllm_alone(spec: RunSpec) -> Iterator[Problem]:
    """`pipelineParallelSize`, `podsPerReplica`, `gpuMemoryUtilization`, `maxModelLen` and `quantization` of `sampler` are
    set with engine vllm only."""
    sampler = spec.sampler
    if sampler.engine == "vllm":
        return
    given = sampler.to_document()
    for name, (allowed, unset) in OF_VLLM.items():
        if given[name] != unset:
            found = repr(given[name]) if isinstance(given[name], str) else f"{given[name]:g}"
            yield spec_problem(
                f"sampler.{name}",
                f"found {found}, allowed: {allowed} with engine {sampler.engine}, as only vllm has it",
                "sampler.engine",
            )


def endpoint_of_endpoint(spec: RunSpec) -> Iterator[Problem]:
    """`sampler.endpoint` is set with engine endpoint, and only then; `sampler.replicas` and `tensorParallelSize` are 1 with
    it, and `resources.accelerators` is 0."""
    sampler = spec.sampler
    if sampler.engine != "endpoint":
        if sampler.endpoint is not None:
            yield spec_problem(
                "sampler.endpoint",
                f"found an object, allowed: null with engine {sampler.engine}, {OF_ENDPOINT}",
                "sampler.engine",
            )
        return
    if sampler.endpoint is None:
        yield spec_problem("sampler.endpoint", URL_AND_FOLDER, "sampler.engine")
    accelerators = sampler.resources.accelerators if sampler.resources is not None else None
    for name, found, allowed, why in (
        ("replicas", sampler.replicas, 1, ONE_SERVER),
        ("tensorParallelSize", sampler.tensor_parallel_size, 1, OF_THE_SERVER),
        ("resources.accelerators", accelerators or 0, 0, OF_THE_SERVER),
    ):
        if found > allowed:
            yield spec_problem(
                f"sampler.{name}",
                f"found {found}, allowed: {allowed} with engine endpoint, {why}",
                "sampler.engine",
            )


def server_address(spec: RunSpec) -> Iterator[Problem]:
    """`sampler.endpoint.url` has a host that can be asked, and no /v1 at its end: what changes weights is not below it."""
    endpoint = spec.sampler.endpoint
    if endpoint is None:
        return
    if not _has_host(endpoint.url):
        yield spec_problem(
            "sampler.endpoint.url",
            f"found {endpoint.url!r}, allowed: a host's name or IP address, such as http://inference:8000 or "
            "http://[fd00::8]:8000",
        )
    elif endpoint.url.rstrip("/").endswith("/v1"):
        yield spec_problem("sampler.endpoint.url", f"found {endpoint.url!r}, {WITHOUT_V1}")


def _has_host(url: str) -> bool:
    """Whether the host of an address is a name, or an IP address that is one."""
    try:
        parts = urlsplit(url)
        if "[" in parts.netloc:
            ipaddress.IPv6Address(parts.hostname or "")
    except ValueError:
        return False
    return bool(parts.hostname)


def server_key(spec: RunSpec) -> Iterator[Problem]:
    """`sampler.endpoint.apiKeyVariable` is none of rltrain's and Ray's own, such as RAY_AUTH_TOKEN, as the server is
    sent it."""
    endpoint = spec.sampler.endpoint
    name = endpoint.api_key_variable if endpoint is not None else None
    if name is not None and any_matches(RESERVED_VARIABLES, name):
        yield spec_problem("sampler.endpoint.apiKeyVariable", f"found {name!r}, {NOT_OURS}")


def endpoint_on_a_cluster(spec: RunSpec) -> Iterator[Problem]:
    """On a cluster, `sampler.engine` is endpoint with `trainer.kind` rltrain only, and `sampler.endpoint` has a
    `persistentVolumeClaim`, a `folder` at which it can be mounted, and a `serverFolder` without `.` and `..`."""
    endpoint, kind = spec.sampler.endpoint, spec.trainer.kind
    if spec.sampler.engine != "endpoint":
        return
    if kind != "rltrain":
        yield spec_problem(
            "sampler.engine",
            f"found 'endpoint', allowed: torch or vllm with trainer.kind {kind}, {OUR_SAMPLERS}",
            "trainer.kind",
        )
    if endpoint is None:
        return
    if endpoint.persistent_volume_claim is None:
        yield spec_problem("sampler.endpoint.persistentVolumeClaim", CLAIM_OF_BOTH)
    if not re.search(MOUNTED_AT, endpoint.folder):
        yield spec_problem("sampler.endpoint.folder", f"found {endpoint.folder!r}, {MOUNTED}")
    seen = endpoint.server_folder
    if seen is not None and re.search(DOTS, seen):
        yield spec_problem("sampler.endpoint.serverFolder", f"found {seen!r}, {AS_THE_SERVER_SEES_IT}")


def completions_fit(spec: RunSpec) -> Iterator[Problem]:
    """`sampler.maxModelLen` is > `maxNewTokens` of `sampler` and `task.evaluation`: it holds prompt and completion."""
    longest, task = spec.sampler.max_model_len, spec.given_task
    if longest is None:
        return
    lengths: dict[str, int | None] = {"sampler.maxNewTokens": spec.sampler.max_new_tokens}
    if task is not None and task.evaluation is not None:
        lengths["task.evaluation.maxNewTokens"] = task.evaluation.max_new_tokens
    for path, length in lengths.items():
        if length is not None and longest <= length:
            yield spec_problem(
                "sampler.maxModelLen",
                f"found {longest}, allowed: a whole number > {path} = {length}, {ROOM_FOR_BOTH}",
                path,
            )


def whole_stages(spec: RunSpec) -> Iterator[Problem]:
    """`sampler.podsPerReplica` divides `pipelineParallelSize`, with engine vllm."""
    sampler = spec.sampler
    if sampler.engine == "vllm" and sampler.pipeline_parallel_size % sampler.pods_per_replica:
        yield spec_problem(
            "sampler.podsPerReplica",
            f"found {sampler.pods_per_replica}, allowed: a divisor of pipelineParallelSize = "
            f"{sampler.pipeline_parallel_size}, {WHOLE_STAGES}",
            "sampler.pipelineParallelSize",
            "sampler.engine",
        )


def sealed_stages(spec: RunSpec) -> Iterator[Problem]:
    """On a cluster, `sampler.podsPerReplica` is 1 with `scheduling.encryption`: stages talk past Ray, unencrypted."""
    pods = spec.sampler.pods_per_replica
    if spec.trainer.kind == "rltrain" and spec.scheduling.encryption and pods > 1:
        yield spec_problem(
            "sampler.podsPerReplica", f"found {pods}, {STAGES_UNSEALED}", "scheduling.encryption"
        )


def devices_of_vllm(spec: RunSpec) -> Iterator[Problem]:
    """With `trainer.kind` rltrain and engine vllm `sampler.resources.accelerators` is 0, or >= `tensorParallelSize` *
    `pipelineParallelSize` / `podsPerReplica`."""
    sampler = spec.sampler
    given = sampler.resources.accelerators if sampler.resources is not None else None
    ours = spec.trainer.kind == "rltrain" and sampler.engine == "vllm"
    uneven = sampler.pipeline_parallel_size % sampler.pods_per_replica  # that is said by `whole_stages`
    if ours and given and given < sampler.devices_per_pod and not uneven:
        yield spec_problem(
            "sampler.resources.accelerators",
            f"found {given}, allowed: 0, or a whole number >= tensorParallelSize * pipelineParallelSize"
            f"{OVER_PODS if sampler.pods_per_replica > 1 else ''} = {sampler.devices_per_pod}, {EVERY_PART}",
            "sampler.tensorParallelSize",
            "sampler.pipelineParallelSize",
            "sampler.podsPerReplica",
            "sampler.engine",
        )


def quantized_from(spec: RunSpec) -> Iterator[Problem]:
    """`sampler.quantization` is fp8 with `model.dtype` bfloat16 only."""
    model, quantization = spec.given_model, spec.sampler.quantization
    if model is not None and model.dtype != "bfloat16" and quantization != "none":
        yield spec_problem(
            "sampler.quantization",
            f"found {quantization!r}, allowed: none with model.dtype {model.dtype}, {FROM_BFLOAT16}",
            "model.dtype",
        )


SAMPLER_RULES: Final = (
    *(vllm_alone, endpoint_of_endpoint, server_address, server_key, completions_fit, whole_stages),
    *(devices_of_vllm, quantized_from),
)
"""Rules of `spec.sampler`."""
