"""`rltrain generate` on real Ray Data: killed, stopped and resumed; other formats, orders and engines; an object store."""

from __future__ import annotations

import collections
import json
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_store import ObjectStore
from training_runs import Outcome, Process, below, until

from rl_api.run import TinyModelSpec
from rl_trainer.model.presets import write_tiny
from rl_trainer.model.tokenizer import load_tokenizer

SECONDS = 500.0
ROWS, PART = 200, 8
LONGEST = 250
GREEDY = ["--temperature", "0", "--max-new-tokens", str(LONGEST), "--part-rows", str(PART), "--slots", "8"]

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model that many tokens end an answer of: some answers are short, some as long as they may be."""
    shape = TinyModelSpec(hidden_size=64, layers=2, heads=4, kv_heads=1, max_positions=1024)
    folder = write_tiny(tmp_path_factory.mktemp("generate") / "model", shape, seed=4)
    for name in ("config.json", "generation_config.json"):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | {"eos_token_id": list(range(4, 34))}))
    return folder


def good_rows() -> list[dict[str, Any]]:
    draw = random.Random(5)
    return [
        {
            "id": number,
            "prompt": f"{draw.randint(0, 999)}+{draw.randint(0, 99)}=",
            "more": {"at": [number, None]},
        }
        for number in range(ROWS)
    ]


def lines() -> list[str]:
    """The rows, and between them bad ones, each with its place; a blank line is no row."""
    rows = [json.dumps(row) for row in good_rows()]
    rows[10] = "{no JSON"
    rows[60] = json.dumps({"id": 60, "prompt": 7})
    rows[61] = json.dumps({"id": 61, "other": "x"})
    rows[120] = json.dumps({"id": 120, "prompt": "1" * 2000})
    rows[121] = json.dumps({"id": 121, "prompt": "\ud800"})
    rows[122] = json.dumps({"id": 122, "messages": [{"role": "user", "content": "2+2="}], "x": 1.5})
    return [*rows[:30], "", *rows[30:]]


BAD = {10, 60, 61, 120, 121}


def start(folder: Path, *arguments: str, **environment: str) -> Process:
    return Process(["generate", *arguments], folder, environment, "rl_cli.main")


def generate(folder: Path, *arguments: str, **environment: str) -> Outcome:
    with start(folder, *arguments, **environment) as process:
        return process.finish(SECONDS)


@pytest.fixture
def here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """The command in this process: to start one, and a Ray for it, costs more than what is generated."""
    from rl_cli.main import main

    monkeypatch.chdir(tmp_path)

    def generate_here(*arguments: str) -> Outcome:
        capsys.readouterr()  # what others have printed before
        code = main(["generate", *arguments])
        return Outcome(code, *capsys.readouterr())

    return generate_here


@pytest.fixture
def ray_data(local_ray: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The Ray of all tests. What the command sets for its process ends with the test, and so do Ray Data's own actors."""
    import ray.data
    from ray.util import list_named_actors

    monkeypatch.setenv("RAY_ENABLE_AUTO_CONNECT", "0")
    monkeypatch.setenv("RAY_BACKEND_LOG_LEVEL", "fatal")
    monkeypatch.setattr(ray.data.DataContext.get_current(), "custom_execution_callback_classes", [])
    before = list_named_actors(all_namespaces=True)
    yield
    for one in list_named_actors(all_namespaces=True):
        if one not in before:
            ray.kill(ray.get_actor(**one))


def answers(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for part in sorted(folder.glob("part-*.jsonl")) for line in part.open()]


def by_transformers(model: Path, prompts: list[str]) -> dict[str, str]:
    """Greedy answers of the library; prompts of one length share a batch, so that nothing is padded."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    tokenizer = load_tokenizer(model)
    library = AutoModelForCausalLM.from_pretrained(model)
    lengths: dict[int, list[str]] = collections.defaultdict(list)
    for prompt in prompts:
        lengths[len(tokenizer.encode(prompt))].append(prompt)
    found = {}
    for same in lengths.values():
        ids = torch.tensor([tokenizer.encode(prompt) for prompt in same])
        made = library.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=LONGEST,
            pad_token_id=0,
            eos_token_id=sorted(tokenizer.stop_ids),
        )
        for prompt, tokens in zip(same, made[:, ids.shape[1] :].tolist(), strict=True):
            end = next((place for place, token in enumerate(tokens) if token in tokenizer.stop_ids), LONGEST)
            found[prompt] = tokenizer.decode(tokens[:end])
    return found


def test_killed_in_the_middle_and_resumed_with_an_engine_that_dies_each_row_is_answered_once(
    model: Path, tmp_path: Path, here: Callable[..., Outcome]
) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(lines()))
    command = ["--model", str(model), "--input", "rows.jsonl", "--output", "out", *GREEDY]
    out = tmp_path / "out"
    with start(tmp_path, *command) as process:
        process.wait_for(lambda: len(list(out.glob("part-*.jsonl"))) >= 2, SECONDS)
        process.send(signal.SIGKILL)
        process.process.wait(60)
        kept = {part.name: part.read_bytes() for part in out.glob("part-*.jsonl")}
    assert 2 <= len(kept) < ROWS // PART, "it was to be killed in the middle"

    other = here(*command, "--temperature", "0.5")
    assert other.code == 2
    assert "holds another job: --temperature: it was begun with 0.0, found 0.5" in other.sentence

    with start(tmp_path, *command) as process:
        process.wait_for(lambda: len(list(out.glob("part-*.jsonl"))) > len(kept), SECONDS)
        (engine,) = [
            one for one, command in below(process.process.pid) if "MapWorker(MapBatches(_Engine))" in command
        ]
        engine.kill()
        done = process.finish(SECONDS).assert_well()
    rows = sum(len(content.splitlines()) for content in kept.values())
    assert f"going on with {rows} of {ROWS} rows done" in done.out
    assert f"{ROWS} rows are in out, {len(BAD)} of them with an error" in done.out
    assert {name: (out / name).read_bytes() for name in kept} == kept
    assert sorted(path.name for path in out.iterdir() if path.name.startswith("_")) == [
        "_job.json",
        "_summary.json",
    ]
    assert [path for path in out.iterdir() if path.name.startswith(".")] == []

    found = answers(out)
    assert len(found) == ROWS
    assert [row.get("id") for row in found] == [None if at == 10 else at for at in range(ROWS)]
    wanted = by_transformers(
        model, [row["prompt"] for at, row in enumerate(good_rows()) if at not in {*BAD, 122}]
    )
    for at, (row, asked) in enumerate(zip(found, good_rows(), strict=True)):
        if at in BAD:
            assert row["error"] and row["completion"] is row["completion_tokens"] is None
        elif at != 122:
            assert row["error"] is None
            assert {name: row[name] for name in asked} == asked
            assert row["completion"] == wanted[asked["prompt"]], asked
    assert found[10]["error"].startswith("row 11 of rows.jsonl cannot be read: ")
    assert "allowed: at most 1023, so that one more fits the context" in found[120]["error"]
    assert (found[122]["error"], found[122]["x"], found[122]["prompt_tokens"]) == (None, 1.5, 4)
    lengths = sorted(row["completion_tokens"] for row in found if not row["error"])
    assert lengths[0] < 20 and lengths[-1] == LONGEST, "the lengths were to have a long tail"

    again = here(*command).assert_well()
    assert (
        f"all {ROWS} rows are in out already, {len(BAD)} of them with an error; there is nothing to do"
        in again.out
    )
    assert "starting Ray" not in again.out


@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")
def test_a_row_has_the_same_answer_in_another_order_format_and_number_of_engines(
    model: Path, tmp_path: Path, here: Callable[..., Outcome], ray_data: None
) -> None:
    sampled = ["--seed", "7", "--n", "2", "--max-new-tokens", "60", "--top-k", "30"]
    rows = [{name: value for name, value in row.items() if name != "more"} for row in good_rows()[:40]]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shuffled = random.Random(1).sample(rows, len(rows))
    (tmp_path / "rows").mkdir()
    for number, some in enumerate((shuffled[:17], shuffled[17:])):
        pq.write_table(pa.Table.from_pylist(some), tmp_path / "rows" / f"{number}.parquet", row_group_size=5)

    one = ["--model", str(model), "--input", "rows.jsonl", "--output", "one", "--slots", "5", *sampled]
    two = [
        "--model",
        str(model),
        "--input",
        "rows",
        "--output",
        "two",
        "--replicas",
        "2",
        "--part-rows",
        "9",
        *sampled,
    ]
    here(*one).assert_well()
    here(*two).assert_well()

    first = {row["id"]: row for row in answers(tmp_path / "one")}
    table = pq.read_table(tmp_path / "two")
    assert [one.name for one in table.schema][:3] == ["id", "prompt", "completion"]
    assert table.column("id").to_pylist() == [row["id"] for row in shuffled], "the order is that of the input"
    assert {row["id"]: row for row in table.to_pylist()} == first
    assert all(
        len(set(row["completion"])) == 2 for row in first.values() if min(row["completion_tokens"]) > 5
    )
    seeded = here(*one[:4], "--output", "three", *sampled, "--seed", "8").assert_well()
    assert f"{len(rows)} rows are in three" in seeded.out
    assert [row["completion"] for row in answers(tmp_path / "three")] != [
        row["completion"] for row in first.values()
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_keeps_what_is_done(model: Path, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(lines()))
    out = tmp_path / "out"
    # A part that is written as the signal comes may not be counted yet: of large ones there are few.
    command = ["--model", str(model), "--input", "rows.jsonl", "--output", "out", *GREEDY]
    command += ["--part-rows", "16"]
    with start(tmp_path, *command) as process:
        process.wait_for(lambda: bool(list(out.glob("part-*.jsonl"))), SECONDS)
        children = psutil.Process(process.process.pid).children(recursive=True)
        process.send(number)
        ended = process.finish(SECONDS)
    assert ended.code == 128 + number
    done = len(answers(out))
    assert 0 < done < ROWS
    assert ended.sentence == f"stopped; {done} of {ROWS} rows are in out, and the same command goes on"
    _, left = psutil.wait_procs(children, timeout=60)
    assert [one.cmdline() for one in left] == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ObjectStore]:
    served = ObjectStore(tmp_path / "object-store")
    served.start()
    yield served
    served.stop()


def test_from_an_object_store_to_an_object_store(model: Path, server: ObjectStore, tmp_path: Path) -> None:
    bucket = server.bucket("rows")
    some = [json.dumps(row) for row in good_rows()[:24]]
    (bucket / "in").mkdir()
    (bucket / "in" / "a.jsonl").write_text("\n".join(some[:15]))
    (bucket / "in" / "b.jsonl").write_text("\n".join(some[15:]))
    command = ["--model", str(model), "--input", "s3://rows/in", "--output", "s3://rows/out", *GREEDY]
    done = generate(tmp_path, *command, **server.environment).assert_well()
    assert "24 rows are in s3://rows/out:" in done.out
    assert [row["id"] for row in answers(bucket / "out")] == list(range(24))
    until(lambda: (bucket / "out" / "_job.json").exists(), 10)
    (bucket / "out" / "part-000001.jsonl").unlink()
    again = generate(tmp_path, *command, **server.environment).assert_well()
    assert "going on with 16 of 24 rows done" in again.out
    assert [row["id"] for row in answers(bucket / "out")] == list(range(24))


MISTAKES = [
    (["--input", "nothing.jsonl"], "--input nothing.jsonl: found no file, allowed: a .jsonl"),
    (["--input", "rows.txt"], "--input rows.txt: found rows.txt, allowed: a .jsonl"),
    (["--input", "rows.jsonl", "--prompt-column", "question"], "allowed: one named question or messages"),
    (["--input", "answered.jsonl"], "has a column completion already"),
    (["--input", "mixed.jsonl", "--format", "parquet"], "its columns do not fit parquet"),
    (["--input", "rows.jsonl", "--output", "full"], "--output full: found data.csv and no _job.json"),
    (["--input", "rows.jsonl", "--output", "rows.txt"], "--output rows.txt: found a file, allowed: a folder"),
    (["--input", "rows.jsonl", "--output", "ftp://x/y"], "--output: found ftp://x/y, allowed: a folder"),
    (["--input", "ftp://x/y"], "--input: found 'ftp://x/y', allowed: s3://bucket/folder"),
    (["--input", "rows.jsonl", "--model", "runs/nothing"], "runs/nothing"),
    (
        ["--input", "rows.jsonl", "--stop", *["x", "--stop"] * 16, "x"],
        "--stop: found 17 texts, allowed: at most 16",
    ),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES)
def test_a_mistake_is_said_before_anything_is_started(
    model: Path,
    tmp_path: Path,
    here: Callable[..., Outcome],
    arguments: list[str],
    sentence: str,
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "x"}\n')
    (tmp_path / "answered.jsonl").write_text('{"prompt": "x", "completion": "y"}\n')
    (tmp_path / "mixed.jsonl").write_text('{"prompt": "x", "a": 1}\n{"prompt": "x", "a": "b"}\n')
    (tmp_path / "rows.txt").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "data.csv").write_text("x")
    printed = here("--model", str(model), "--output", "out", *arguments)
    assert printed.code == 2, printed
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert "starting Ray" not in printed.out
