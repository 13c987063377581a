"""The whole loop: completion tokens per second of `rltrain run` against TRL's GRPOTrainer.

One tiny Qwen2 (0.6 M parameters: hidden 128, 4 layers, 4 heads, 2 key/value heads, vocabulary 64, character tokenizer),
float32, prompts like `12+34=`, 64 completions per step (8 prompts x 8), temperature 1, no KL term, no evaluation, a cheap
reward. Three cases:
  equal 32, equal 64   every answer has 32 or 64 tokens: the end token has a logit that is never sampled;
  long tail            at most 64 tokens, mean 16: the end token has the probability that makes it so at every position.
Both sides train the same model folder, so their answers have the same lengths. Starting up and warming up are left out;
repetitions take turns.

Ours is the command `rltrain run` with the file that `document` below makes, and the figures come from its metrics.jsonl.
Share of the limit: the least time that a step could take, over the time that ours took. That is the time of the bare matrix
products (`products.py`) of decoding a step's answers and of training on them, each on one thread as in the run: those of the
role that has more of them, as the roles work at the same time, or of both over the cores, where these are fewer.

Both at their best on an idle machine: TRL uses as many threads as there are cores; ours has one sampler and one learner of a
thread each, and a second learner in the first case.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from peers import BENCH, LOGS, PeerError, Worker, environment
from table import Check, at_least, report, spread

TRL_REQUIREMENTS = (
    "trl==1.16.0",
    "transformers==5.19.0",
    "accelerate==1.15.0",
    "datasets==5.2.0",
    "torch==2.13.0",
)
PROMPTS_PER_STEP, GROUP_SIZE = 8, 8
PROMPTS = 4096
CHARACTERS = "\n 0123456789+-*/=()abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOP?"
RUN_SECONDS = 240.0


@dataclass(frozen=True)
class Case:
    """One workload: `mean` None: all answers have `max_new_tokens`. A repetition is `steps` training steps.

    `learners` of ours: two where learning takes longer than sampling, so that the sampler's core helps out.
    """

    name: str
    max_new_tokens: int
    mean: float | None
    wanted: float
    steps: int
    learners: int = 1

    @property
    def folder(self) -> str:
        """Name of its model folder."""
        return "model-" + ("equal" if self.mean is None else f"mean-{self.mean:g}")


CASES = (
    Case("equal 32", 32, None, 1.5, steps=40, learners=2),
    Case("equal 64", 64, None, 1.5, steps=25),
    Case("long tail", 64, 16.0, 3.0, steps=60),
)


@dataclass(frozen=True)
class Measured:
    """One repetition: seconds of its steps, and the lengths or their sum."""

    seconds: float
    tokens: int
    steps: int

    @property
    def rate(self) -> float:
        """Completion tokens per second."""
        return self.tokens / self.seconds

    @property
    def mean_length(self) -> float:
        """Tokens per completion."""
        return self.tokens / (self.steps * PROMPTS_PER_STEP * GROUP_SIZE)


# -- what both sides train on ----------------------------------------------------------------------------------------


def write_prompts(target: Path) -> None:
    """`12+34=` and so on. The answer is the sum, over and over: so that rewards differ in nearly every group."""
    generator = random.Random(0)
    with target.open("w") as file:
        for _ in range(PROMPTS):
            a, b = generator.randrange(10, 100), generator.randrange(10, 100)
            file.write(json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b) * 32}) + "\n")


def write_model(folder: Path, max_new_tokens: int, mean: float | None, shape: Any = None) -> None:
    """The benchmark's model, whose answers end after `mean` tokens on average of at most `max_new_tokens`, or never.
    `shape`: a TinyModelSpec; None: the benchmark's.

    One number of the hidden state is the same at every position: embeddings write it, no layer adds to it. The end token's
    row of the output head reads that number and nothing else, so its logit does not depend on the text.
    """
    import torch
    from safetensors.torch import save_file

    from rl_api.run import TinyModelSpec
    from rl_trainer.model.config import parse_config
    from rl_trainer.model.decoder import Decoder
    from rl_trainer.model.presets import tiny_config, tiny_tokenizer, write_tiny

    shape = shape or TinyModelSpec(layers=4, max_positions=128)
    write_tiny(folder, shape)
    tokenizer = tiny_tokenizer()
    vocabulary = tokenizer["model"]["vocab"]
    kept = [name for name in vocabulary if vocabulary[name] < 2 or name in f"{CHARACTERS}\u010a\u0120"]
    tokenizer["model"]["vocab"] = {name: index for index, name in enumerate(kept)}
    config = {**tiny_config(shape), "vocab_size": len(kept), "tie_word_embeddings": False}
    model = Decoder(parse_config(config))
    model.initialize(0.05, seed=0)
    end: int = config["eos_token_id"]
    with torch.no_grad():
        model.embed[:, 0] = 1.0
        for layer in model.layers:
            layer.output_weight[0] = 0.0
            layer.down_weight[0] = 0.0
        texts = torch.randint(2, len(kept), (64, 64), generator=torch.Generator().manual_seed(0))
        hidden = model.hidden_at(texts, torch.ones_like(texts), torch.arange(texts.numel()))
        logits = hidden @ model.head_weight.T
        logits[..., end] = -math.inf
        model.head[end] = 0.0
        model.head[end, 0] = (logits.logsumexp(-1) + end_log_odds(max_new_tokens, mean)).mean() / hidden[
            ..., 0
        ].mean()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    save_file(model.hf_state_dict(), folder / "model.safetensors", metadata={"format": "pt"})


def end_log_odds(max_new_tokens: int, mean: float | None) -> float:
    """log(p / (1 - p)) of the end token. Lengths are geometric and cut: `(1 - (1 - p)^n) / p` on average."""
    if mean is None:
        return -40.0
    p = 1 / mean
    for _ in range(50):
        p = (1 - (1 - p) ** max_new_tokens) / mean
    return math.log(p / (1 - p))


# -- the limit -------------------------------------------------------------------------------------------------------


def answers(case: Case) -> dict[str, Any]:
    """What one step samples and trains on, made up: answers as long as the model's are."""
    generator = random.Random(1)
    p = 1 / (1 + math.exp(-end_log_odds(case.max_new_tokens, case.mean)))
    lengths, prompts = [], []
    for _ in range(PROMPTS_PER_STEP):
        prompt = [generator.randrange(2, len(CHARACTERS)) for _ in "12+34="]
        for _ in range(GROUP_SIZE):
            drawn = math.log(1 - generator.random()) / math.log1p(-p)
            lengths.append(int(min(case.max_new_tokens, 1 + drawn)))
            prompts.append(prompt)
    completions = [[generator.randrange(2, len(CHARACTERS)) for _ in range(length)] for length in lengths]
    advantages = [generator.gauss(0.0, 1.0) for _ in lengths]
    return {"prompts": prompts, "lengths": lengths, "completions": completions, "advantages": advantages}


def least_seconds(case: Case, folder: Path, repetitions: int) -> float:
    """The least time that a step of ours could take; see the module."""
    model = str(folder / case.folder)
    request = {**answers(case), "products": repetitions, "steps": 1, "fresh": True}
    found = []
    for script, arguments in (
        ("worker_engine.py", (str(len(request["lengths"])), "1")),
        ("worker_learner.py", ("1", "1e-6")),
    ):
        name = f"loop-{script.removesuffix('.py')}"
        with Worker(name, sys.executable, BENCH / script, model, *arguments) as worker:
            found.append(spread(worker(request)["products"]).median)
    decoding, training = found
    cores = min(os.cpu_count() or 1, 1 + case.learners)
    return max(decoding, training / case.learners, (decoding + training) / cores)


# -- ours ------------------------------------------------------------------------------------------------------------


def document(case: Case, folder: Path, steps: int) -> dict[str, Any]:
    """The RLTrainingRun that is measured."""
    return {
        "apiVersion": "rltrain.dev/v1alpha1",
        "kind": "RLTrainingRun",
        "metadata": {"name": "bench-loop"},
        "spec": {
            "model": {"source": str(folder / case.folder)},
            "task": {
                "environment": "prompts",
                "file": str(folder / "prompts.jsonl"),
                "rewards": [{"rule": "fraction"}],
            },
            "algorithm": {
                "name": "grpo",
                "groupSize": GROUP_SIZE,
                "promptsPerStep": PROMPTS_PER_STEP,
                "learningRate": 1e-6,
            },
            "sampler": {"maxNewTokens": case.max_new_tokens},
            "learner": {"replicas": case.learners},
            "buffer": {"maxStaleness": 2},
            "checkpoint": None,
            "stop": {"maxSteps": steps},
        },
    }


def ours(case: Case, folder: Path, warm_up: int, overrides: Sequence[str] = ()) -> Measured:
    """One run of the command, from after its warm-up steps to its last step."""
    target = folder / "run"
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(document(case, folder, warm_up + case.steps)))
    command = [
        str(Path(sys.executable).parent / "rltrain"),
        "run",
        str(file),
        "--out",
        str(target),
        "--overwrite",
    ]
    for one in overrides:
        command += ["--set", one]
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / "loop-ours.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        )
        try:
            code = process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise PeerError(f"rltrain run took more than {RUN_SECONDS:.0f} s; see {log}") from None
    if code:
        raise PeerError(f"rltrain run ended with status {code}; see {log}")
    lines = [json.loads(line) for line in (target / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "event" not in line]
    counted = steps[warm_up:]
    return Measured(
        counted[-1]["time"] - steps[warm_up - 1]["time"],
        sum(step["completion_tokens"] for step in counted),
        len(counted),
    )


def trl(worker: Worker, case: Case, steps: int) -> Measured:
    """One repetition of TRL."""
    answer = worker(
        {
            "case": case.name,
            "model": case.folder,
            "maxNewTokens": case.max_new_tokens,
            "promptsPerStep": PROMPTS_PER_STEP,
            "groupSize": GROUP_SIZE,
            "steps": steps,
        }
    )
    return Measured(answer["seconds"], sum(answer["lengths"]), steps)


def main() -> bool:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [case.name for case in CASES]
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=10, help="steps of every start that are not counted")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="torch threads of TRL")
    parser.add_argument("--case", action="append", choices=names, help="only these")
    parser.add_argument(
        "--set", action="append", default=[], help="override a field of our run, as `rltrain run` does"
    )
    options = parser.parse_args()

    rows: list[list[object]] = []
    checks: list[Check] = []
    with tempfile.TemporaryDirectory(prefix="rltrain-bench-") as scratch:
        folder = Path(scratch)
        write_prompts(folder / "prompts.jsonl")
        for case in CASES:
            if not (folder / case.folder).exists():
                write_model(folder / case.folder, case.max_new_tokens, case.mean)
        python = environment("trl", TRL_REQUIREMENTS)
        with Worker(
            "loop-trl", python, BENCH / "peer_trl.py", scratch, str(options.threads), freeze=True
        ) as worker:
            for case in CASES:
                if options.case and case.name not in options.case:
                    continue
                mine, theirs, least = [], [], []
                trl(worker, case, options.warm_up)
                for _ in range(options.repetitions):
                    mine.append(ours(case, folder, options.warm_up, options.set))
                    theirs.append(trl(worker, case, case.steps // 2))
                    least.append(least_seconds(case, folder, 5))
                    print(f"{case.name}: {mine[-1].rate:,.0f} {theirs[-1].rate:,.0f} tok/s", file=sys.stderr)
                ratio = (
                    spread([one.rate for one in mine]).median / spread([one.rate for one in theirs]).median
                )
                rows.append(
                    [
                        case.name,
                        spread([one.rate for one in mine]),
                        spread([one.rate for one in theirs]),
                        ratio,
                        spread([one.seconds / one.steps for one in mine]).median,
                        spread(least).median / spread([one.seconds / one.steps for one in mine]).median,
                        spread([one.seconds / one.steps for one in theirs]).median,
                        spread([one.mean_length for one in mine]).median,
                        spread([one.mean_length for one in theirs]).median,
                    ]
                )
                checks.append(at_least(f"{case.name}, ours / TRL", ratio, case.wanted))
    columns = [
        "lengths",
        "ours, tok/s",
        "TRL, tok/s",
        "ratio",
        "ours, s/step",
        "share of the limit",
        "TRL, s/step",
        "ours, mean length",
        "TRL",
    ]
    meta = {"repetitions": options.repetitions, "threads": options.threads, "what": __doc__}
    return report("loop", columns, rows, meta, checks)


if __name__ == "__main__":
    sys.exit(not main())
