from __future__ import annotations

from rl_api import RunSpec
from rl_trainer.run.supported import long_sequences


def said(answer: int, budget: int) -> str | None:
    return long_sequences(
        RunSpec.model_validate(
            {
                "model": {"source": "tiny"},
                "task": {"environment": "reasoning-gym", "name": "chain_sum"},
                "sampler": {"maxNewTokens": answer},
                "learner": {"tokensPerMicroBatch": budget},
                "stop": {"maxSteps": 1},
            }
        )
    )


def test_sequences_longer_than_a_pass_are_said_before_the_run():
    assert said(1024, 1024) is None
    sentence = said(1025, 1024)
    assert sentence is not None
    assert sentence.startswith(
        "sampler.maxNewTokens is 1025, learner.tokensPerMicroBatch 1024: a longer sequence"
    )
