from __future__ import annotations

from rl_api import RunSpec
from rl_trainer.run.supported import long_sequences


def said(answer: int, budget: int, processes: int = 1) -> str | None:
    return long_sequences(
        RunSpec.model_validate(
            {
                "model": {"source": "tiny"},
                "task": {"environment": "reasoning-gym", "name": "chain_sum"},
                "sampler": {"maxNewTokens": answer},
                "learner": {
                    "tokensPerMicroBatch": budget,
                    "replicas": processes,
                    "contextSize": processes,
                },
                "stop": {"maxSteps": 1},
            }
        )
    )


def test_sequences_longer_than_a_pass_are_said_before_the_run():
    assert said(1024, 1024) is None
    assert said(2048, 1024, processes=2) is None
    sentence = said(1025, 1024)
    assert sentence is not None
    assert sentence.startswith(
        "sampler.maxNewTokens is 1025, learner.tokensPerMicroBatch 1024: a longer sequence is a pass of its own, of 1025 "
        "tokens in each learner process that has a part of it; plan memory for it, or set learner.contextSize: 2, or more"
    )
    sentence = said(3001, 1024, processes=2)
    assert sentence is not None
    assert "1024 and learner.contextSize 2: " in sentence
    assert "of 1501 tokens in each learner process" in sentence
    assert "set learner.contextSize: 3, or more" in sentence
