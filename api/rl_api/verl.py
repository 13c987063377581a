"""A run as verl's RayPPOTrainer takes it: configuration of verl 0.9.1, and what verl has no counterpart for. Pure.

The values are overrides of verl's `ppo_trainer` (Hydra), which has defaults for everything else. verl's synchronous
trainer samples and learns on the same GPUs, so the learners' nodes are all there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rl_api.paths import parse_path
from rl_api.problems import Problem, spec_problem
from rl_api.run import RetrySpec, RunSpec

_KINDS: Final = {"ppoClip": "vanilla", "gspo": "gspo", "cispo": "cispo"}
_AGGREGATIONS: Final = {
    "tokenMean": "token-mean",
    "sequenceMean": "seq-mean-token-mean",
    "sequenceSum": "seq-mean-token-sum",
    "constant": "seq-mean-token-sum-norm",
}
_DTYPES: Final = {"float32": ("fp32", "float32"), "bfloat16": ("bf16", "bfloat16")}
# In the loss: the estimator's value with the gradient of the KL divergence itself, as ours.
_KL_IN_LOSS: Final = {"k1": "k1+", "k2": "k2", "k3": "k3+"}
_NO_DUAL_CLIP: Final = 1e9
"""verl always has a dual clip; this one is never reached."""

# What verl does in one way only: field, and the values that mean that way.
_ONE_WAY: Final[dict[str, tuple[Any, ...]]] = {
    "model.revision": (None,),
    "model.tiny": (None,),
    "task.environment": ("prompts",),
    "task.promptTemplate": (None,),
    "task.answerTemplate": (None,),
    "task.systemPrompt": (None,),
    "task.tools": ([],),
    "task.chatTemplateKwargs": ({},),
    "task.observationRole": ("user",),
    "task.onRewardError": ("stop",),
    "task.dataset": (None,),
    "task.toolLatency": (None,),
    "task.evaluation": (None,),
    "algorithm.loss.kind": tuple(_KINDS),
    "algorithm.loss.proximal": ("recomputed",),
    "algorithm.importance.level": ("token", "sequence"),
    "algorithm.overlong.buffer": (0.0,),
    "algorithm.overlong.maskTruncated": (False,),
    "algorithm.ratioBound": (None,),
    "algorithm.optimizer.decay": ("constant", "cosine"),
    "learner.parallelism": ("ddp",),
    "sampler.engine": ("vllm",),
    "sampler.replicas": (1,),
    "sampler.stop": ([],),
    "sampler.pipelineParallelSize": (1,),
    "sampler.podsPerReplica": (1,),
    "sampler.quantization": ("none",),
    "learner.fsdpSize": (None,),
    "learner.contextSize": (1,),
    "learner.resources": (None,),
    "buffer.maxStaleness": (0,),
    "buffer.order": ("fifo",),
    "buffer.onFull": ("block",),
    "placement.mode": ("auto", "collocated"),
    **{"placement.sharedSamplers": (None,), "placement.partGroups": (None,), "placement.handOverAt": (None,)},
    **{"placement.handOver": ("interrupt",), "placement.residency": ("auto",)},
    "placement.replan": (None,),
    "placement.strategy": ("PACK",),
    "weightSync.transport": ("auto", "objectStore"),
    "weightSync.everySteps": (1,),
    "weightSync.swap": ("betweenSteps",),
    "retry.livenessTimeout": (RetrySpec().to_document()["livenessTimeout"],),
    "stop.targetReward": (None,),
}


def without_counterpart(spec: RunSpec) -> Iterator[Problem]:
    """With `trainer.kind` verl, what verl has no counterpart for is left at the value that means what verl does."""
    if spec.trainer.kind != "verl":
        return
    document = spec.to_document()
    for path, allowed in _ONE_WAY.items():
        value = _at(document, path)
        if value not in allowed:
            yield _refusal(path, value, " or ".join(_words(one) for one in allowed))
    if spec.model.source == "tiny" or spec.model.source.startswith("s3://"):
        yield _refusal("model.source", spec.model.source, "a folder or a hub id")
    if spec.algorithm.own_objective is not None:
        yield _refusal("algorithm.name", spec.algorithm.name, "a recipe")
    prompts, parts = spec.algorithm.prompts_per_step, spec.algorithm.mini_batches
    if prompts % parts:
        yield _refusal("algorithm.miniBatches", parts, f"a divisor of algorithm.promptsPerStep = {prompts}")
    yield from _advantage(spec)
    yield from _rewards(spec)
    if spec.checkpoint is not None and spec.checkpoint.asynchronous == "always":
        yield _refusal("checkpoint.asynchronous", "always", "auto or never")
    storage = spec.checkpoint.storage if spec.checkpoint is not None else None
    if storage is not None and storage.s3 is not None:
        yield _refusal("checkpoint.storage.s3", storage.s3, "null: persistentVolumeClaim or path")


def _advantage(spec: RunSpec) -> Iterator[Problem]:
    advantage, importance = spec.algorithm.advantage, spec.algorithm.importance
    if _estimator(spec) is None:
        yield _refusal(
            "algorithm.advantage.estimator",
            advantage.estimator,
            "groupMean, leaveOneOut without normalizeByStd, or batchNormalized",
        )
    if advantage.estimator == "groupMean" and advantage.normalize_by_std and advantage.epsilon != 1e-6:
        yield _refusal("algorithm.advantage.epsilon", advantage.epsilon, "1e-06")
    if importance.kind == "mask" and importance.low is None:
        yield _refusal("algorithm.importance.low", None, "a number, with kind mask")
    if importance.kind == "truncate" and importance.low is not None:
        yield _refusal("algorithm.importance.low", importance.low, "null, with kind truncate")


def _rewards(spec: RunSpec) -> Iterator[Problem]:
    rewards = spec.task.rewards
    if len(rewards) != 1 or rewards[0].rule != "function":
        yield _refusal(
            "task.rewards",
            ", ".join(reward.rule for reward in rewards),
            "one part of rule function: a function with verl's arguments",
        )
    elif (rewards[0].weight, rewards[0].right, rewards[0].wrong) != (1.0, 1.0, 0.0):
        yield _refusal(
            "task.rewards[0]", "weight, right or wrong", "none of them, as verl takes the value as it is"
        )
    if spec.task.file is not None and not spec.task.file.endswith((".parquet", ".json", ".jsonl")):
        yield _refusal("task.file", spec.task.file, "a .parquet, .json or .jsonl file with verl's columns")


def _refusal(path: str, found: object, allowed: str) -> Problem:
    return spec_problem(
        path, f"found {_words(found)}, allowed with trainer.kind verl: {allowed}", "trainer.kind"
    )


def _words(value: object) -> str:
    for empty, words in ((None, "null"), ([], "an empty list"), ({}, "an empty object")):
        if value == empty:
            return words
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return str(value)


def _at(document: Mapping[str, Any], path: str) -> Any:
    value: Any = document
    for part in parse_path(path):
        value = value[part]
    return value


def _estimator(spec: RunSpec) -> str | None:
    """verl's advantage estimator; None: it has none."""
    advantage = spec.algorithm.advantage
    if advantage.estimator == "groupMean":
        return "grpo"
    if advantage.estimator == "leaveOneOut" and not advantage.normalize_by_std:
        return "rloo"
    return "reinforce_plus_plus" if advantage.estimator == "batchNormalized" else None


def verl_config(spec: RunSpec, *, name: str, checkpoints: str, gpus_per_node: int) -> dict[str, Any]:
    """verl's configuration for a run that keeps `without_counterpart`, as a nested object.

    Args:
        spec: the run; `learner.replicas` is the number of nodes.
        name: name of the run.
        checkpoints: folder that every node sees.
        gpus_per_node: GPUs of each node.
    """
    algorithm, sampler, stop = spec.algorithm, spec.sampler, spec.stop
    module, _, function = (spec.task.rewards[0].function or ":").partition(":")
    files = [spec.task.file]
    save = spec.checkpoint.every_steps if spec.checkpoint is not None else -1
    keep = spec.checkpoint.keep if spec.checkpoint is not None else None
    return {
        "data": {
            "train_files": files,
            "val_files": files,  # verl wants one; it is not evaluated on
            "prompt_key": spec.task.prompt_field,
            **_long_prompts(spec),
            "train_batch_size": algorithm.prompts_per_step,
            "max_response_length": sampler.max_new_tokens,
            "seed": spec.seed,
        },
        "actor_rollout_ref": {
            "model": _model(spec),
            "actor": _actor(spec),
            "ref": {"fsdp_config": _fsdp(spec)},
            "rollout": _rollout(spec),
        },
        "reward": {
            "custom_reward_function": {"path": f"{module.replace('.', '/')}.py", "name": function},
            "reward_manager": {"name": "naive"},
        },
        "algorithm": _algorithm(spec),
        "trainer": {
            "project_name": "rltrain",
            "experiment_name": name,
            "logger": ["console", "file"],
            "nnodes": spec.learner.replicas,
            "n_gpus_per_node": gpus_per_node,
            "total_training_steps": stop.max_steps,
            "total_epochs": stop.max_steps,  # an epoch has one step at least: the steps end the run
            "save_freq": save,
            "max_actor_ckpt_to_keep": keep,
            "default_local_dir": checkpoints,
            "resume_mode": "auto",
            "test_freq": -1,
            "val_before_train": False,
        },
    }


def _algorithm(spec: RunSpec) -> dict[str, Any]:
    algorithm = spec.algorithm
    advantage, kl, refills = algorithm.advantage, algorithm.kl, algorithm.dynamic_sampling.max_refills
    importance = algorithm.importance
    in_reward = kl.coefficient > 0 and kl.placement == "reward"
    threshold: float | str = importance.high
    if importance.kind == "mask":
        threshold = f"{importance.low}_{importance.high}"
    return {
        "adv_estimator": _estimator(spec),
        "norm_adv_by_std_in_grpo": advantage.normalize_by_std,
        "gamma": advantage.gamma if advantage.estimator == "batchNormalized" else 1.0,
        "use_kl_in_reward": in_reward,
        "kl_penalty": kl.estimator,
        "kl_ctrl": {"type": "fixed", "kl_coef": kl.coefficient},
        "filter_groups": {
            "enable": refills > 0,
            "metric": "reward",
            "max_num_gen_batches": 1 + refills if refills else 0,
        },
        "rollout_correction": {
            "rollout_is": None if importance.kind == "none" else importance.level,
            "rollout_is_threshold": threshold,
        },
    }


def _long_prompts(spec: RunSpec) -> dict[str, Any]:
    """What becomes of prompts that are too long. Without a length of ours verl has its own, and ends the run."""
    longest = spec.sampler.max_model_len
    if spec.task.on_long_prompt != "drop" or longest is None:
        return {"filter_overlong_prompts": False}
    return {"filter_overlong_prompts": True, "max_prompt_length": longest - spec.sampler.max_new_tokens}


def _model(spec: RunSpec) -> dict[str, Any]:
    lora = spec.learner.lora
    found: dict[str, Any] = {
        "path": spec.model.source,
        "enable_gradient_checkpointing": spec.learner.activation_checkpointing,
    }
    if lora is not None:
        found |= {
            "lora_rank": lora.rank,
            "lora_alpha": lora.alpha,
            "target_modules": list(lora.target_modules),
        }
    return found


def _actor(spec: RunSpec) -> dict[str, Any]:
    algorithm = spec.algorithm
    loss, kl, optimizer = algorithm.loss, algorithm.kl, algorithm.optimizer
    constant = loss.constant_length or spec.sampler.max_new_tokens
    return {
        "ppo_mini_batch_size": algorithm.prompts_per_step // algorithm.mini_batches,
        "ppo_epochs": algorithm.epochs,
        "use_dynamic_bsz": True,
        "ppo_max_token_len_per_gpu": spec.learner.tokens_per_micro_batch,
        "data_loader_seed": spec.seed,
        "policy_loss": {"loss_mode": _KINDS[loss.kind]},
        "clip_ratio": algorithm.clip.low,
        "clip_ratio_low": algorithm.clip.low,
        "clip_ratio_high": algorithm.clip.high,
        "clip_ratio_c": loss.dual_clip or _NO_DUAL_CLIP,
        "loss_agg_mode": _AGGREGATIONS[loss.aggregation],
        "loss_scale_factor": constant if loss.aggregation == "constant" else None,
        "entropy_coeff": algorithm.entropy_coefficient,
        "use_kl_loss": kl.coefficient > 0 and kl.placement == "loss",
        "kl_loss_coef": kl.coefficient,
        "kl_loss_type": _KL_IN_LOSS[kl.estimator],
        "grad_clip": algorithm.gradient_clip,
        "optim": {
            "optimizer": "AdamW",
            "lr": algorithm.learning_rate,
            "betas": list(optimizer.betas),
            "weight_decay": optimizer.weight_decay,
            "clip_grad": algorithm.gradient_clip,
            "lr_warmup_steps": optimizer.warmup_steps,
            "lr_scheduler_type": optimizer.decay,
            "min_lr_ratio": optimizer.min_ratio,
            "override_optimizer_config": {"eps": optimizer.epsilon},
        },
        "fsdp_config": _fsdp(spec) | {"optimizer_offload": spec.learner.optimizer_offload},
    }


def _fsdp(spec: RunSpec) -> dict[str, Any]:
    weights, compute = _DTYPES[spec.model.dtype]
    return {"model_dtype": weights, "dtype": compute, "seed": spec.seed}


def _rollout(spec: RunSpec) -> dict[str, Any]:
    sampler = spec.sampler
    asked = {"gpu_memory_utilization": sampler.gpu_memory_utilization, "max_model_len": sampler.max_model_len}
    return {
        "name": sampler.engine,
        "n": spec.algorithm.group_size,
        "tensor_model_parallel_size": sampler.tensor_parallel_size,
        "max_num_seqs": sampler.max_sequences,
        "temperature": sampler.temperature,
        "top_p": sampler.top_p,
        "top_k": sampler.top_k or -1,
        "dtype": spec.model.dtype,
        "seed": spec.seed,
        "calculate_log_probs": True,
        **{name: value for name, value in asked.items() if value is not None},
    }


def hydra_overrides(config: Mapping[str, Any], above: str = "") -> list[str]:
    """The configuration as Hydra's command line takes it: `a.b=value`, one for each leaf, its path below `above`."""
    found: list[str] = []
    for key, value in config.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping) and key != "override_optimizer_config":
            found += hydra_overrides(value, f"{path}.")
        else:
            found.append(f"{path}={_hydra(value)}")
    return found


def _hydra(value: object) -> str:
    """A value in Hydra's grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_hydra(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(_hydra(one) for one in value)}]"
    return repr(value)
