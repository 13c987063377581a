"""`trainer.kind: verl`: our overrides in verl's own configuration, composed and checked by verl's own schema."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from verl.trainer.config import AlgoConfig
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.utils.config import omega_conf_to_dataclass, validate_config
from verl.workers.config import FSDPActorConfig, FSDPEngineConfig, RolloutConfig

from rl_api import RLTrainingRun, check_document
from rl_api.recipes import RECIPES
from rl_api.verl import hydra_overrides, verl_config

SPEC: dict[str, Any] = {
    "seed": 7,
    "trainer": {"kind": "verl"},
    "model": {"source": "Qwen/Qwen2.5-0.5B-Instruct", "dtype": "bfloat16"},
    "task": {
        "environment": "prompts",
        "file": "data/train.parquet",
        "promptField": "question",
        "rewards": [{"rule": "function", "function": "my.rewards:score"}],
    },
    "sampler": {"engine": "vllm"},
}


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def composed(**more: Any) -> Any:
    """verl's whole configuration for a run."""
    document = {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingRun",
        "metadata": {"name": "mine"},
        "spec": merge(SPEC, more),
    }
    run, problems = check_document(document)
    assert isinstance(run, RLTrainingRun), problems
    ours = verl_config(run.spec, name=run.name, checkpoints="/shared/it's", gpus_per_node=8)
    with initialize_config_module("verl.trainer.config", version_base=None):
        # Without a leading +, Hydra refuses a field that verl does not have.
        found = compose("ppo_trainer", overrides=hydra_overrides(ours))
    assert_contains(OmegaConf.to_container(found, resolve=False), ours)
    return found


def assert_contains(found: Any, ours: Any, path: str = "") -> None:
    """Everything we say is there, with the value and type that we said."""
    if isinstance(ours, dict):
        for key, value in ours.items():
            assert_contains(found[key], value, f"{path}.{key}")
    else:
        assert found == ours, path
        assert type(found) is type(ours), path


def actor(**more: Any) -> FSDPActorConfig:
    found = omega_conf_to_dataclass(composed(**more).actor_rollout_ref.actor)
    assert isinstance(found, FSDPActorConfig)
    return found


def algorithm(**choices: Any) -> AlgoConfig:
    found = omega_conf_to_dataclass(composed(algorithm=choices).algorithm)
    assert isinstance(found, AlgoConfig)
    return found


def test_the_whole_configuration_is_good_for_verl() -> None:
    found = composed(algorithm={"kl": {"coefficient": 0.1}})
    validate_config(found, use_reference_policy=True, use_critic=False)
    parts = found.actor_rollout_ref
    assert isinstance(omega_conf_to_dataclass(parts.rollout), RolloutConfig)
    assert isinstance(omega_conf_to_dataclass(parts.ref.fsdp_config), FSDPEngineConfig)


def test_the_batch() -> None:
    found = composed(
        algorithm={"promptsPerStep": 64, "groupSize": 4, "miniBatches": 2, "epochs": 3},
        learner={"replicas": 2, "tokensPerMicroBatch": 9000},
    )
    assert found.data.train_batch_size == 64
    rollout, actor = found.actor_rollout_ref.rollout, found.actor_rollout_ref.actor
    assert rollout.n == 4
    assert (actor.ppo_mini_batch_size, actor.ppo_epochs) == (32, 3)
    assert actor.use_dynamic_bsz is True
    assert actor.ppo_max_token_len_per_gpu == 9000
    assert (
        rollout.log_prob_max_token_len_per_gpu == found.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu
    )
    assert rollout.log_prob_max_token_len_per_gpu == 9000
    assert (found.trainer.nnodes, found.trainer.n_gpus_per_node) == (2, 8)


def test_lora_and_activations() -> None:
    found = composed(
        learner={
            "lora": {"rank": 8, "alpha": 24, "targetModules": ["q_proj", "v_proj"]},
            "activationCheckpointing": True,
            "optimizerOffload": True,
        }
    ).actor_rollout_ref
    model = found.model
    assert found.actor.fsdp_config.optimizer_offload is True
    assert (model.lora_rank, model.lora_alpha, list(model.target_modules)) == (8, 24, ["q_proj", "v_proj"])
    assert model.enable_gradient_checkpointing is True
    plain = composed().actor_rollout_ref
    assert (plain.model.lora_rank, plain.model.enable_gradient_checkpointing) == (0, False)
    assert plain.actor.fsdp_config.optimizer_offload is False


def test_model_task_and_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = composed()
    assert found.actor_rollout_ref.model.path == "Qwen/Qwen2.5-0.5B-Instruct"
    assert list(found.data.train_files) == list(found.data.val_files) == ["data/train.parquet"]
    assert found.data.prompt_key == "question"
    # As verl finds the function of a run's reward. (Its own class of this group cannot be made: its base lacks a method.)
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "rewards.py").write_text(
        "def score(**asked):\n    return len(asked['solution_str'])\n"
    )
    monkeypatch.chdir(tmp_path)
    score = get_custom_reward_fn(found)
    assert score is not None
    assert score(solution_str="four") == 4
    assert found.reward.reward_manager.name == "naive"


@pytest.mark.parametrize(("dtype", "short"), [("bfloat16", "bf16"), ("float32", "fp32")])
def test_number_format_and_seed(dtype: str, short: str) -> None:
    found = composed(model={"dtype": dtype}).actor_rollout_ref
    for engine in (found.actor.fsdp_config, found.ref.fsdp_config):
        assert (engine.model_dtype, engine.dtype, engine.seed) == (short, dtype, 7)
    assert (found.rollout.dtype, found.rollout.seed, found.actor.data_loader_seed) == (dtype, 7, 7)
    assert composed().data.seed == 7


def test_sampling() -> None:
    asked = {"tensorParallelSize": 2, "maxSequences": 99, "maxNewTokens": 300, "temperature": 0.7}
    memory = {"gpuMemoryUtilization": 0.6, "maxModelLen": 4096}
    found = composed(sampler=asked | {"topP": 0.9, "topK": 40} | memory)
    rollout = omega_conf_to_dataclass(found.actor_rollout_ref.rollout)
    assert (rollout.name, rollout.tensor_model_parallel_size, rollout.max_num_seqs) == ("vllm", 2, 99)
    assert (rollout.temperature, rollout.top_p, rollout.top_k) == (0.7, 0.9, 40)
    assert (rollout.gpu_memory_utilization, rollout.max_model_len) == (0.6, 4096)
    assert rollout.response_length == found.data.max_response_length == 300
    assert rollout.calculate_log_probs is True
    assert composed().actor_rollout_ref.rollout.top_k == -1


@pytest.mark.parametrize(
    ("advantage", "estimator", "by_std", "gamma"),
    [
        ({"estimator": "groupMean"}, "grpo", True, 1.0),
        ({"estimator": "groupMean", "normalizeByStd": False}, "grpo", False, 1.0),
        ({"estimator": "leaveOneOut", "normalizeByStd": False}, "rloo", False, 1.0),
        ({"estimator": "batchNormalized", "gamma": 0.9}, "reinforce_plus_plus", True, 0.9),
    ],
)
def test_advantages(advantage: dict[str, Any], estimator: str, by_std: bool, gamma: float) -> None:
    found = algorithm(advantage=advantage)
    assert callable(get_adv_estimator_fn(found.adv_estimator))
    assert (found.adv_estimator, found.norm_adv_by_std_in_grpo, found.gamma) == (estimator, by_std, gamma)


@pytest.mark.parametrize(("kind", "mode"), [("ppoClip", "vanilla"), ("gspo", "gspo"), ("cispo", "cispo")])
def test_objective_and_clipping(kind: str, mode: str) -> None:
    found = actor(algorithm={"loss": {"kind": kind}, "clip": {"low": 0.1, "high": 0.3}})
    assert found.policy_loss.loss_mode == mode
    assert callable(get_policy_loss_fn(mode))
    assert (found.clip_ratio, found.clip_ratio_low, found.clip_ratio_high) == (0.1, 0.1, 0.3)
    assert found.clip_ratio_c == 1e9


def test_dual_clip_and_entropy() -> None:
    found = actor(algorithm={"loss": {"kind": "ppoClip", "dualClip": 3}, "entropyCoefficient": 0.01})
    assert (found.clip_ratio_c, found.entropy_coeff) == (3.0, 0.01)


@pytest.mark.parametrize(
    ("loss", "mode", "factor"),
    [
        ({"aggregation": "tokenMean"}, "token-mean", None),
        ({"aggregation": "sequenceMean"}, "seq-mean-token-mean", None),
        ({"aggregation": "sequenceSum"}, "seq-mean-token-sum", None),
        ({"aggregation": "constant"}, "seq-mean-token-sum-norm", 256),
        ({"aggregation": "constant", "constantLength": 100}, "seq-mean-token-sum-norm", 100),
    ],
)
def test_aggregation(loss: dict[str, Any], mode: str, factor: int | None) -> None:
    found = actor(algorithm={"loss": loss})
    assert (found.loss_agg_mode, found.loss_scale_factor) == (mode, factor)


@pytest.mark.parametrize(("estimator", "penalty"), [("k1", "k1+"), ("k2", "k2"), ("k3", "k3+")])
def test_kl_in_the_loss(estimator: str, penalty: str) -> None:
    found = composed(algorithm={"kl": {"coefficient": 0.05, "estimator": estimator}})
    actor = omega_conf_to_dataclass(found.actor_rollout_ref.actor)
    assert (actor.use_kl_loss, actor.kl_loss_coef, actor.kl_loss_type) == (True, 0.05, penalty)
    assert found.algorithm.use_kl_in_reward is False


def test_kl_in_the_reward_and_none_at_all() -> None:
    kl = {"coefficient": 0.05, "estimator": "k1", "placement": "reward"}
    found = algorithm(kl=kl)
    assert (found.use_kl_in_reward, found.kl_penalty) == (True, "k1")
    assert (found.kl_ctrl.type, found.kl_ctrl.kl_coef) == ("fixed", 0.05)
    assert not actor(algorithm={"kl": kl}).use_kl_loss
    assert not actor().use_kl_loss
    assert not algorithm().use_kl_in_reward


@pytest.mark.parametrize(
    ("importance", "level", "threshold"),
    [
        ({"kind": "none"}, None, 2.0),
        ({"kind": "truncate", "high": 3.0}, "token", 3.0),
        ({"kind": "truncate", "level": "sequence"}, "sequence", 2.0),
        ({"kind": "mask", "low": 0.5, "high": 4.0}, "token", "0.5_4.0"),
    ],
)
def test_importance(importance: dict[str, Any], level: str | None, threshold: float | str) -> None:
    # In verl's files this group has no class by name, but there is one for it.
    found = RolloutCorrectionConfig(**algorithm(importance=importance).rollout_correction)
    assert (found.rollout_is, found.rollout_is_threshold) == (level, threshold)


def test_dynamic_sampling() -> None:
    found = algorithm(dynamicSampling={"maxRefills": 3}).filter_groups
    assert (found.enable, found.metric, found.max_num_gen_batches) == (True, "reward", 4)
    assert not algorithm(dynamicSampling={"maxRefills": 0}).filter_groups.enable


def test_optimizer() -> None:
    optimizer = {"betas": [0.8, 0.95], "epsilon": 1e-6, "weightDecay": 0.1, "warmupSteps": 5}
    optimizer |= {"decay": "cosine", "minRatio": 0.1}
    found = actor(algorithm={"learningRate": 3e-6, "gradientClip": 0.5, "optimizer": optimizer})
    optim = found.optim
    assert (optim.optimizer, optim.lr, list(optim.betas)) == ("AdamW", 3e-6, [0.8, 0.95])
    assert (optim.weight_decay, optim.lr_warmup_steps, optim.min_lr_ratio) == (0.1, 5, 0.1)
    assert (optim.lr_scheduler_type, optim.clip_grad, found.grad_clip) == ("cosine", 0.5, 0.5)
    assert dict(optim.override_optimizer_config) == {"eps": 1e-6}


def test_steps_and_checkpoints() -> None:
    trainer = composed(stop={"maxSteps": 40}, checkpoint={"everySteps": 5, "keep": 2}).trainer
    assert (trainer.total_training_steps, trainer.total_epochs) == (40, 40)
    assert (trainer.save_freq, trainer.max_actor_ckpt_to_keep) == (5, 2)
    assert (trainer.default_local_dir, trainer.resume_mode) == ("/shared/it's", "auto")
    assert (trainer.test_freq, trainer.val_before_train) == (-1, False)
    assert (trainer.project_name, trainer.experiment_name) == ("rltrain", "mine")
    assert list(trainer.logger) == ["console", "file"]
    assert composed(checkpoint=None).trainer.save_freq == -1


def test_recipes_that_verl_can_follow() -> None:
    """Those that it cannot are refused with a sentence, not bent."""
    followed = set()
    for name in RECIPES:
        document = {
            "apiVersion": "rltrain.dev/v1alpha1",
            "kind": "RLTrainingRun",
            "metadata": {"name": "mine"},
            "spec": merge(SPEC, {"algorithm": {"name": name}}),
        }
        run, problems = check_document(document)
        if run is None:
            assert all("allowed with trainer.kind verl: " in problem.sentence for problem in problems)
        else:
            followed.add(name)
            assert math.isclose(composed(algorithm={"name": name}).actor_rollout_ref.actor.optim.lr, 1e-6)
    assert {"grpo", "dr_grpo", "gspo"} <= followed
    assert "dapo" not in followed  # overlong shaping
