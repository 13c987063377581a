"""Warm starts: the tokens of a solved prompt, and which of them are trained on."""

from __future__ import annotations

from pathlib import Path

from rl_api.run import TinyModelSpec
from rl_api.task import TaskSpec
from rl_trainer.model.chat import Chat
from rl_trainer.model.presets import write_tiny
from rl_trainer.model.tokenizer import load_tokenizer
from rl_trainer.run.warm_start import solution_sample
from rl_trainer.tasks import load_task

SMALL = TinyModelSpec(hidden_size=16, layers=1, heads=2, kv_heads=1, intermediate_size=16, max_positions=32)


def test_a_solved_dialogue_trains_on_the_turns_of_the_model_and_on_how_they_end(tmp_path: Path):
    spec = TaskSpec.model_validate({"environment": "tool-use", "name": "calculator"})
    chat = Chat.of(load_tokenizer(write_tiny(tmp_path / "model", SMALL)), spec)
    task = load_task(spec, 0)
    prompt = task.prompt(3)
    sample = solution_sample(task, prompt, chat)

    def ids(text: str) -> list[int]:
        return chat.tokenizer.encode(text)

    (end,) = chat.tokenizer.stop_ids
    call, answer = [*ids(f"<{prompt.item['expression']}>"), end], [*ids(prompt.answer), end]
    observation = ids(f"{prompt.answer}\n")
    assert sample.tokens.tolist() == [*ids(prompt.text), *call, *observation, *answer]
    assert sample.tokens[sample.mask].tolist() == [*call, *answer]
    assert len(sample.log_probs) == len(sample.versions) == len(call) + len(answer)
