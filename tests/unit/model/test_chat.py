"""Dialogues as token ids, with templates like those of real models and the library's own rendering beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from rl_api.errors import InvalidConfig, ModelError
from rl_api.task import TaskSpec
from rl_trainer.model.chat import Chat
from rl_trainer.model.tokenizer import byte_letter, load_tokenizer

SPECIAL = ("<bos>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")
BOS, _, IM_END, END_OF_TEXT = range(256, 260)
# As Qwen3 writes chats: tools in the system message, tool answers in user messages, an empty thought where none is wanted.
CHATML = """{{- bos_token }}
{%- if tools %}
    {{- '<|im_start|>system\\nTools:' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
# As Llama 2 does: no tools, a space before the end of a turn, contents stripped.
INST = """{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant') }}
    {%- endif %}
    {%- if message.role == 'user' %}{{- bos_token + '[INST] ' + message.content | trim + ' [/INST]' }}
    {%- else %}{{- ' ' + message.content | trim + ' ' + eos_token }}{%- endif %}
{%- endfor %}"""
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A byte-level tokenizer that begins every text with a token of its own."""
    letters = {byte_letter(value): value for value in range(256)}
    backend = Backend(models.BPE(vocab=letters, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "eos_token_id": END_OF_TEXT}))
    write(tmp_path, eos_token="<|im_end|>", bos_token="<bos>")
    return tmp_path


def write(folder: Path, **fields: Any) -> None:
    file = folder / "tokenizer_config.json"
    before = json.loads(file.read_text()) if file.exists() else {"tokenizer_class": "PreTrainedTokenizerFast"}
    file.write_text(json.dumps(before | fields))


def chat(folder: Path, template: str | None = CHATML, **fields: Any) -> Chat:
    if template is not None:
        write(folder, chat_template=template)
    spec = {"environment": "tool-use", "name": "calculator", **fields}
    return Chat.of(load_tokenizer(folder), TaskSpec.model_validate(spec))


def library(folder: Path, messages: list[dict[str, str]], **options: Any) -> list[int]:
    """The library's ids of a whole conversation, up to where the model goes on."""
    found = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False, **options
    )
    return list(found)


def conversation(role: str = "user", system: str | None = None) -> list[dict[str, str]]:
    said = [("user", "1+2?"), ("assistant", "<1+2>"), (role, "3"), ("assistant", "<3>"), (role, "3 again")]
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, *({"role": role, "content": content} for role, content in said)]


def dialogue(one: Chat, end: int = IM_END) -> list[int]:
    """The same as `rollout.loop` builds it: what was sampled is as it is, all else is appended."""
    ids = one.prompt("1+2?")
    for sampled, observation in (("<1+2>", "3"), ("<3>", "3 again")):
        ids += [*one.tokenizer.encode(sampled, special_tokens=False), end]
        ids += one.observation(observation, ids[-1])
    return ids


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({"systemPrompt": "Be brief."}, {}),
        ({"observationRole": "tool", "tools": [TOOL]}, {"tools": [TOOL]}),
        ({"chatTemplateKwargs": {"enable_thinking": True}}, {"enable_thinking": True}),
    ],
)
def test_a_dialogue_is_what_the_library_makes_of_the_whole_conversation(folder, fields, options):
    one = chat(folder, **fields)
    messages = conversation(fields.get("observationRole", "user"), fields.get("systemPrompt"))
    assert dialogue(one) == library(folder, messages, **options)
    assert dialogue(one).count(BOS) == 1


def test_each_turn_begins_as_the_template_has_it_without_thinking(folder):
    one = chat(folder, chatTemplateKwargs={"enable_thinking": False})
    begin = one.tokenizer.encode("<think>\n\n</think>\n\n", special_tokens=False)
    prompt, turn = one.prompt("1+2?"), one.observation("3", IM_END)
    assert prompt[-len(begin) :] == turn[-len(begin) :] == begin
    assert prompt == library(folder, [{"role": "user", "content": "1+2?"}], enable_thinking=False)


def test_tools_are_shown_once(folder):
    one = chat(folder, tools=[TOOL])
    text = one.tokenizer.decode(dialogue(one))
    assert text.count('"name": "add"') == 1


def test_a_template_for_tools_is_taken_where_there_are_some(folder):
    named = [
        {"name": "default", "template": CHATML},
        {"name": "tool_use", "template": "with tools:" + CHATML},
    ]
    write(folder, chat_template=named)
    plain, tools = chat(folder, None), chat(folder, None, tools=[TOOL])
    assert not plain.tokenizer.decode(plain.prompt("q")).startswith("with tools:")
    assert tools.tokenizer.decode(tools.prompt("q")).startswith("with tools:")


def test_the_end_of_a_turn_is_written_once_whichever_token_ended_it(folder):
    one = chat(folder)
    assert one.end_of_turn == IM_END  # not END_OF_TEXT, which stops as well
    ended, other = one.observation("3", IM_END), one.observation("3", END_OF_TEXT)
    assert IM_END not in ended[:2]
    assert other == [IM_END, *ended]


def test_a_template_with_a_space_before_the_end_of_a_turn(folder):
    one = chat(folder, INST)
    assert one.end_of_turn == IM_END
    assert one.tokenizer.decode(one.observation("3", IM_END)) == "[INST] 3 [/INST]"
    assert one.observation("3", IM_END)[0] == BOS  # this template's own: it begins every exchange with one
    assert one.tokenizer.decode(one.observation("3", END_OF_TEXT)) == " [INST] 3 [/INST]"


def test_without_a_template_nothing_begins_a_text_in_the_middle_of_a_dialogue(folder):
    one = chat(folder, None)
    assert one.prompt("1+2?")[0] == BOS
    assert one.observation("3\n", END_OF_TEXT) == [ord("3"), ord("\n")]
    assert dialogue(one, END_OF_TEXT).count(BOS) == 1
    assert one.end_of_turn == min(one.tokenizer.stop_ids)


def test_what_a_template_refuses_is_said_before_the_run(folder):
    with pytest.raises(
        ModelError, match=r"refuses messages of roles \['user', 'assistant', 'tool'\] \(roles must alternate"
    ):
        chat(folder, INST, observationRole="tool")
    assert chat(folder, INST, environment="reasoning-gym", observationRole="tool")


@pytest.mark.parametrize(("field", "value"), [("tools", [TOOL]), ("chatTemplateKwargs", {"a": 1})])
def test_what_only_a_template_can_use(folder, field, value):
    with pytest.raises(InvalidConfig, match=rf"^spec.task.{field}: the model has no chat template that"):
        chat(folder, None, **{field: value})


@pytest.mark.parametrize("environment", ["tool-use", "reasoning-gym"])
@pytest.mark.parametrize("name", ["tools", "messages", "tokenize", "add_generation_prompt"])
def test_what_the_template_is_given_by_the_trainer(folder, name, environment):
    with pytest.raises(
        InvalidConfig, match=rf"^spec.task.chatTemplateKwargs: found {name}, which the trainer"
    ):
        chat(folder, CHATML, environment=environment, chatTemplateKwargs={name: False})


def test_a_template_that_leaves_out_earlier_turns(folder):
    last = CHATML.replace(
        "message.content + '<|im_end|>", "(message.content if loop.last else '') + '<|im_end|>"
    )
    with pytest.raises(ModelError, match="leaves out what the model has said before"):
        chat(folder, last)
