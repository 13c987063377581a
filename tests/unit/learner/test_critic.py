"""The critic on a tiny model: where it begins, how a batch is cut, what it learns, and that it goes on as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from trajectories import sampled

from rl_api import RunSpec
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.value_targets import ValueTargets
from rl_trainer.learner.batch import collate
from rl_trainer.learner.critic import Critic
from rl_trainer.learner.rank import Learner, MiniBatch
from rl_trainer.model.resolve import resolve_model
from rl_trainer.trajectory import Trajectory


def spec(tokens: int = 16_384, **critic: object) -> RunSpec:
    return RunSpec.model_validate(
        {
            "model": {"source": "tiny", "tiny": {"hiddenSize": 32, "layers": 1, "intermediateSize": 32}},
            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
            "algorithm": {
                "name": "ppo",
                "learningRate": 1e-2,
                "critic": {"learningRate": 1e-2, "valueClip": 0, **critic},
            },
            "learner": {"tokensPerMicroBatch": tokens},
            "stop": {"maxSteps": 10},
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return resolve_model("tiny", tmp_path_factory.mktemp("models"), spec().model.tiny, 0, None)


def learner(folder: Path, run: RunSpec | None = None) -> Learner:
    made = Learner(folder, run or spec())
    made.start_reinforcement()
    return made


def critic_of(made: Learner) -> Critic:
    assert made.critic is not None
    return made.critic


def samples(count: int, seed: int = 0) -> list[Trajectory]:
    """With a hole in the mask, and returns that a value can foresee: the first token of the prompt says which."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        length = int(rng.integers(8, 20))
        mask = np.zeros(length, dtype=np.bool_)
        mask[3:] = True
        mask[5:7] = False
        tokens = rng.integers(3, 60, length).astype(np.int32)
        tokens[0] = rng.integers(3, 5)
        size = int(mask.sum())
        returns = np.full(size, float(tokens[0] - 3))
        log_probs = np.full(size, -4.5, np.float32)
        targets = ValueTargets(rng.normal(size=size), returns, np.zeros(size))
        made.append(sampled(tokens, mask, log_probs, targets))
    return made


def returns_of(batch: list[Trajectory]) -> np.ndarray:
    return np.concatenate([s.advantage.returns for s in batch if isinstance(s.advantage, ValueTargets)])


def learning(one: Trajectory, returns: float) -> Trajectory:
    """The same with other returns for the critic."""
    assert isinstance(one.advantage, ValueTargets)
    return replace(one, advantage=replace(one.advantage, returns=np.full(len(one.log_probs), returns)))


def whole(batch: list[Trajectory]) -> MiniBatch:
    return MiniBatch(batch, LossDenominators.from_lengths([int(s.mask.sum()) for s in batch]))


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_it_begins_as_the_policy_with_values_of_zero(folder: Path) -> None:
    made, batch = learner(folder), samples(3)
    found = made.token_estimates(batch)
    assert found.kl is None
    assert found.values is not None
    assert [len(part) for part in found.values] == [int(s.mask.sum()) for s in batch]
    assert not np.concatenate(found.values).any()
    body = critic_of(made).model.body
    assert torch.equal(body.embed, made.model.embed)
    assert body.embed.data_ptr() != made.model.embed.data_ptr()
    assert (
        Learner(
            folder,
            spec().model_copy(
                update={
                    "algorithm": RunSpec.model_validate(
                        {
                            "model": {"source": "tiny"},
                            "task": {"environment": "reasoning-gym", "name": "chain_sum"},
                        }
                    ).algorithm
                }
            ),
        ).critic
        is None
    )


def test_it_learns_returns_and_says_them_of_each_token_before_it_comes(folder: Path) -> None:
    made, batch = learner(folder, spec(learningRate=3e-3)), samples(16)
    losses = [made.update([whole(batch)], train_policy=False).metrics["value_loss"] for _ in range(40)]
    assert losses[0] == pytest.approx(0.5 * np.mean(returns_of(batch) ** 2), rel=1e-5)
    assert losses[-1] < 0.05 * losses[0]
    found = made.token_estimates(batch).values
    assert found is not None
    assert np.corrcoef(np.concatenate(found), returns_of(batch))[0, 1] > 0.9
    # The value of the state before a token does not know the token.
    other = [replace(s, tokens=np.concatenate([s.tokens[:-1], [7]]).astype(np.int32)) for s in batch]
    again = made.token_estimates(other).values
    assert again is not None
    np.testing.assert_allclose(np.concatenate(again), np.concatenate(found), atol=1e-6)


def test_micro_batches_do_not_change_values_or_update(folder: Path) -> None:
    batch, results = samples(12), []
    for budget in (16_384, 24):
        made = learner(folder, spec(budget))
        for _ in range(2):
            result = made.update([whole(batch)])
        values = made.token_estimates(batch).values
        assert values is not None
        results.append((weights(critic_of(made).model), np.concatenate(values), result.metrics["value_loss"]))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=0, atol=1e-5)
    assert results[0][2] == pytest.approx(results[1][2], rel=1e-5)


def test_the_first_step_clips_values_to_the_range_around_the_old_ones(folder: Path) -> None:
    batch = [learning(s, 5.0) for s in samples(6)]
    made = learner(folder, spec(valueClip=0.05))
    fractions = [
        made.update([whole(batch)], train_policy=False).metrics["value_clip_fraction"] for _ in range(6)
    ]
    assert fractions[0] == 0.0
    assert fractions[-1] > 0.9


def test_the_policy_stays_while_only_the_critic_learns(folder: Path) -> None:
    made, batch = learner(folder), samples(4)
    policy, critic = weights(made.model).clone(), weights(critic_of(made).model).clone()
    result = made.update([whole(batch)], train_policy=False)
    assert (result.optimizer_steps, result.skipped) == (0, 0)
    assert torch.equal(weights(made.model), policy)
    assert not torch.equal(weights(critic_of(made).model), critic)
    assert made.update([whole(batch)]).optimizer_steps == 1
    assert not torch.equal(weights(made.model), policy)


def test_the_policy_learns_the_same_beside_a_critic(folder: Path) -> None:
    batch = samples(4)
    alone = Learner(folder, spec())
    beside = learner(folder)
    for each in (alone, beside):
        each.update([whole(batch), whole(batch)])
    assert torch.equal(weights(alone.model), weights(beside.model))


def test_its_state_makes_the_next_step_the_same(folder: Path) -> None:
    first, second = samples(6, 1), samples(6, 2)
    straight = learner(folder)
    straight.update([whole(first)])
    state = {name: value.clone() for name, value in critic_of(straight).state().items()}
    resumed = Learner(folder, spec())
    resumed.load_critic(state)
    for each in (critic_of(straight), critic_of(resumed)):
        each.update([([collate(second)], whole(second).denominators)])
    assert torch.equal(weights(critic_of(straight).model), weights(critic_of(resumed).model))
    assert critic_of(resumed).training.steps == 2
    with pytest.raises(KeyError):
        critic_of(resumed).load({})


def test_a_run_that_began_without_a_critic_gets_one(folder: Path) -> None:
    made = Learner(folder, spec())
    made.load_critic(None)
    assert torch.equal(critic_of(made).model.body.embed, made.model.embed)


def test_returns_that_are_no_numbers_change_nothing_and_are_counted(folder: Path) -> None:
    made, batch = learner(folder), samples(3)
    before = weights(critic_of(made).model).clone()
    bad = [learning(s, np.nan) for s in batch]
    result = made.update([whole(bad)], train_policy=False)
    assert result.skipped == 1
    assert "value_loss" not in result.metrics
    assert torch.equal(weights(critic_of(made).model), before)
