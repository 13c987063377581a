"""The search tool: ranking, the corpus that comes with it, dialogues over it, and corpora of the user's."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_api.errors import TaskError
from rl_api.task import TaskSpec
from rl_trainer.tasks import load_task
from rl_trainer.tasks.environments.names import drawn_names, renamed
from rl_trainer.tasks.environments.retrieval import BM25, passages_of, words_of
from rl_trainer.tasks.environments.search import Searches
from rl_trainer.tasks.environments.targets import environment_target
from rl_trainer.tasks.killable import KillableProcess


def search_task(tmp_path=None, heldout=0, **fields):
    spec = {"environment": "tool-use", "name": "search", **fields}
    return load_task(TaskSpec.model_validate(spec), 0, search=tmp_path, heldout=heldout)


def corpus(tmp_path, *documents):
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return "docs.jsonl"


def by_the_formula(texts, query):
    """Scores of all texts, straight from the formula."""
    split = [words_of(text) for text in texts]
    mean = sum(map(len, split)) / len(split)
    scores = []
    for words in split:
        score = 0.0
        for word in set(words_of(query)):
            n = sum(word in other for other in split)
            tf = words.count(word)
            idf = math.log(1 + (len(split) - n + 0.5) / (n + 0.5))
            score += idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * len(words) / mean))
        scores.append(score)
    return scores


TEXTS = st.lists(st.text("ab c", min_size=1, max_size=12).filter(words_of), min_size=1, max_size=8)


@given(TEXTS, st.text("abc ", max_size=9), st.integers(1, 9))
def test_ranking_is_that_of_the_formula(texts, query, most):
    expected = by_the_formula(texts, query)
    found = BM25(texts).best(query, most)
    assert len(found) == min(most, sum(score > 0 for score in expected))
    for place, score in found:
        assert score == pytest.approx(expected[place])
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    if found:
        assert found[0][1] == pytest.approx(max(expected))


def test_a_rare_word_and_a_short_text_count_more_and_the_earlier_of_equals_is_first():
    index = BM25(["the owl the owl the", "the crow", "the crow", "the long story of a crow and the sea"])
    assert [place for place, _ in index.best("the crow", 3)] == [1, 2, 3]
    assert index.best("The OWL", 1)[0][0] == 0
    assert index.best("heron", 5) == [] == index.best("?!", 5)
    assert BM25([]).best("owl", 1) == []


@given(st.text(max_size=80), st.integers(1, 9))
def test_passages_have_all_words_in_their_order(text, most):
    passages = passages_of(text, most)
    assert " ".join(passages).split() == text.split()
    assert all(1 <= len(passage.split()) <= most for passage in passages)


@given(st.integers(0, 2**31 - 1), st.sets(st.from_regex(r"[A-Z]?[a-z]{1,6}", fullmatch=True), max_size=40))
def test_other_names_are_all_different(seed, words):
    names = drawn_names(words, seed)
    assert names == drawn_names(words, seed)
    assert names.keys() == words
    lower = [name.lower() for name in names.values()]
    assert len(set(lower)) == len(lower) and not set(lower) & {word.lower() for word in words}
    assert all(name[0].isupper() == word[0].isupper() for word, name in names.items())


def test_whole_words_are_renamed():
    assert renamed("Odel: the Odels, Odel.", {"Odel": "Baku"}) == "Baku: the Odels, Baku."


@pytest.mark.parametrize("rename", [False, True])
@pytest.mark.parametrize("hops", [1, 2])
def test_a_perfect_model_finds_every_answer_of_the_almanac(hops, rename):
    args = {"hops": hops, "rename": rename}
    environments = Searches(None)
    questions = set()
    for seed in range(400):
        item = environments.generate(random.Random(seed), args)
        questions.add(item["question"])
        dialogue = environments(item, args)
        assert dialogue.reset() == item["question"]
        *calls, answer = environments.solution(item, args)
        assert len(calls) == hops and answer == item["answer"]
        for call, title, later in zip(calls, item["searches"], [*item["searches"][1:], answer], strict=True):
            result = dialogue.step(call)
            assert not result.done
            assert result.observation.startswith(f"{title}: ") and f" {later}" in result.observation
            assert title in item["question"] or call != calls[0]
        assert dialogue.step(answer).done
    assert len(questions) > (390 if rename else 100)


def test_with_other_names_the_own_ones_find_nothing():
    environments = Searches(None)
    item = environments.generate(random.Random(1), {"rename": True})
    dialogue = environments(item, {"rename": True})
    assert dialogue.step("search(Zanu)").observation == "nothing found\n"
    assert dialogue.step("search(river food)").observation.count("river") == 1
    plain = environments({"question": "food of Zanu?"}, {})
    assert plain.step("search(Zanu)").observation == "Zanu: river Gliv, ruler Tobo, food eggs\n"
    assert plain.step("see search(ZANU, food) and search(Velm)").observation.startswith("Zanu: ")


@given(st.text(max_size=200))
def test_a_turn_never_raises(text):
    environments = Searches(None)
    result = environments({"question": "food of Zanu?"}, {}).step(text)
    assert result.done or result.observation.endswith("\n")


@pytest.mark.parametrize("turn", ["eggs", "", "search(Zanu", "search Zanu", "Search(Zanu)"])
def test_a_turn_without_a_call_ends_the_dialogue(turn):
    assert Searches(None)({"question": "food of Zanu?"}, {}).step(turn).done


def test_a_dialogue_of_the_task_with_latency_and_score():
    task = search_task(heldout=30, maxTurns=3, toolLatency={"mean": "2s"})
    prompt = task.prompt(0)
    assert prompt.text not in {held.text for held in task.heldout()}
    call, seen, answer = task.solution(prompt)
    assert (call.trained, seen.trained, answer.trained) == (True, False, True)
    dialogue = task.environment(prompt)
    assert dialogue.reset() == prompt.text
    result = dialogue.step(call.text)
    assert result.observation == seen.text and result.delay_seconds > 0
    last = dialogue.step(answer.text)
    assert last.done and last.score.exact and last.score.reward == 1.0


def test_a_corpus_and_questions_of_ones_own(tmp_path):
    name = corpus(
        tmp_path,
        {"title": "Owls", "text": "An owl hunts at night and sleeps by day."},
        {"text": "Crows remember faces."},
    )
    (tmp_path / "questions.jsonl").write_text(
        '{"question": "When does an owl hunt?", "answer": "at night", "searches": ["owl hunt"]}\n'
        '{"question": "Who remembers faces?", "answer": "crows"}\n'
    )
    args = {"corpus": name, "passage_words": 6, "results": 2}
    task = search_task(tmp_path, args=args, file="questions.jsonl")
    prompts = {task.prompt(index).answer: task.prompt(index) for index in range(2)}
    dialogue = task.environment(prompts["at night"])
    assert dialogue.step("search(who sleeps, an owl?)").observation == (
        "Owls: An owl hunts at night and\nOwls: sleeps by day.\n"
    )
    assert dialogue.step("search(faces)").observation == "Crows remember faces.\n"
    assert task.solution(prompts["at night"])[0].text == "search(owl hunt)"
    with pytest.raises(TaskError, match=r"^warmStart: item .* lacks searches"):
        task.solution(prompts["crows"])


def test_facts_of_a_corpus_of_ones_own_are_asked_for(tmp_path):
    name = corpus(tmp_path, {"title": "Bi (moon)", "text": "Bi is red.", "facts": {"colour": "red"}})
    task = search_task(tmp_path, args={"corpus": name})
    prompt = task.prompt(3)
    assert (prompt.text, prompt.answer) == ("colour of Bi (moon)?", "red")
    assert [segment.text for segment in task.solution(prompt)][:2] == [
        "search(Bi  moon )",
        "Bi (moon): Bi is red.\n",
    ]
    with pytest.raises(TaskError, match=r"documents of docs.jsonl have no chains of 2 facts to ask for"):
        search_task(tmp_path, args={"corpus": name, "hops": 2})


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([{"text": "a"}], r"task.args.corpus: documents of docs.jsonl have no facts to ask for"),
        ([{"title": "A"}], r"docs.jsonl:1: found text None, allowed: text that is not empty"),
        ([{"title": 3, "text": "a"}], r"docs.jsonl:1: found title 3, allowed: text"),
        ([{"text": "a", "facts": {"b": "c"}}], r"docs.jsonl:1: field title is missing, required with facts"),
        ([{"title": "A", "text": "a", "facts": {"b": 1}}], r"docs.jsonl:1: found facts {'b': 1}, allowed"),
        (
            [
                {"title": "A", "text": "a", "facts": {"b": "c"}},
                {"title": "A", "text": "a", "facts": {"b": "d"}},
            ],
            r"docs.jsonl:2: found b of A: 'd', an earlier document says 'c'; allowed: one value",
        ),
        ([], r"^task.args.corpus: docs.jsonl is empty; it needs one JSON object per line"),
    ],
)
def test_broken_corpora(tmp_path, documents, message):
    with pytest.raises(TaskError, match=message):
        search_task(tmp_path, args={"corpus": corpus(tmp_path, *documents)})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"hop": 1}, r"^task.args.hop: search has no such argument; it has corpus, hops, rename, results"),
        ({"hops": 4}, r"^task.args.hops: found 4, allowed: a whole number from 1 to 3"),
        ({"hops": True}, r"^task.args.hops: found True, allowed: a whole number"),
        ({"results": 0}, r"^task.args.results: found 0, allowed: a whole number from 1 to 20"),
        ({"rename": 1}, r"^task.args.rename: found 1, allowed: true or false"),
        ({"corpus": 7}, r"^task.args.corpus: found 7, allowed: path or s3:// address"),
        ({"corpus": "none.jsonl"}, r"^task.args.corpus: there is no file none.jsonl"),
        ({"corpus": "ftp://a/b"}, r"^task.args.corpus: .*ftp"),
    ],
)
def test_wrong_arguments(args, message):
    with pytest.raises(TaskError, match=message):
        search_task(args=args)


def test_questions_of_ones_own_are_not_renamed(tmp_path):
    (tmp_path / "questions.jsonl").write_text(
        '{"question": "food of Zanu?", "answer": "eggs", "names": ["Zanu"]}\n'
    )
    task = search_task(tmp_path, file="questions.jsonl")
    assert task.environment(task.prompt(0)).step("search(Zanu)").observation.endswith("food eggs\n")
    with pytest.raises(
        TaskError, match=r"found task.args.rename true, allowed .* made of facts.*questions.jsonl:1"
    ):
        search_task(tmp_path, file="questions.jsonl", args={"rename": True})


def test_an_item_without_a_question(tmp_path):
    (tmp_path / "questions.jsonl").write_text('{"prompt": "Who?", "answer": "crows"}\n')
    with pytest.raises(TaskError, match=r"found question None, allowed: text.*questions.jsonl:1"):
        search_task(tmp_path, file="questions.jsonl")


def test_simulators_answer_as_a_sampler_itself_does(tmp_path):
    name = corpus(tmp_path, {"title": "Bi", "text": "Bi is red.", "facts": {"colour": "red"}})
    spec = TaskSpec.model_validate(
        {"environment": "tool-use", "name": "search", "args": {"corpus": name}, "simulators": {"replicas": 1}}
    )
    worker = environment_target(spec, tmp_path, KillableProcess())
    task = load_task(spec, 0, search=tmp_path, simulators=[worker])
    prompt = task.prompt(0)
    dialogue = task.environment(prompt)
    dialogue.reset()
    assert dialogue.step("search(bi)").result(10).observation == "Bi: Bi is red.\n"
    last = dialogue.step("red").result(10)
    assert last.done and last.score.exact
