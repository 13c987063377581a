"""Small training runs for tests: a run file with its data and reward, started in this process or in one of its own.

The reward looks at `moods.json` beside it at every call, so a test decides which prompt it fails on, and how.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import yaml

from rl_trainer.checkpoint.manifest import Checkpoint
from rl_trainer.checkpoint.store import CheckpointStore
from rl_trainer.cli import main
from rl_trainer.observe.metrics import StepRecord, read_events, read_metrics

GROUP, PROMPTS = 2, 4
REWARD_RULE: dict[str, Any] = {"rule": "function", "function": "moody_reward:reward"}
SPEC: dict[str, Any] = {
    "seed": 1,
    "model": {
        "source": "tiny",
        "tiny": {
            "hiddenSize": 32,
            "layers": 1,
            "heads": 2,
            "kvHeads": 1,
            "intermediateSize": 32,
            "maxPositions": 32,
        },
    },
    "task": {
        "environment": "prompts",
        "file": "prompts.jsonl",
        # A process gets no processor for a second now and then, on a busy machine: none of these rewards hangs.
        "rewards": [REWARD_RULE | {"timeout": "2m"}],
    },
    "algorithm": {"groupSize": GROUP, "promptsPerStep": PROMPTS, "learningRate": 1e-2},
    "sampler": {"replicas": 1, "maxSequences": 8, "maxNewTokens": 6},
    "buffer": {"capacity": 16, "maxStaleness": 0},
    "checkpoint": {"everySteps": 2},
    "stop": {"maxSteps": 6},
}
REWARD = """
import json, math, time
from pathlib import Path

def reward(prompt, completion, answer):
    moods = json.loads((Path(__file__).parent / "moods.json").read_text())
    time.sleep(moods.get("delay", 0.0))
    mood = moods.get(str(prompt["index"]))
    if mood == "raise":
        raise ValueError("no reward today")
    if mood == "hang":
        time.sleep(3600)
    if mood == "nan":
        return math.nan
    if mood == "holdFirst" and first(f"held-{prompt['index']}"):
        while not (Path(__file__).parent / "let-go").exists():
            time.sleep(0.02)
    if mood == "huge":
        return 1e36 * (sum(map(ord, completion)) % 97)
    return len(set(completion)) / 6

def first(name):
    try:
        (Path(__file__).parent / name).mkdir()
    except FileExistsError:
        return False
    return True
"""


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    def assert_well(self) -> Outcome:
        """It succeeded, and without a word on standard error."""
        assert (self.code, self.err) == (0, ""), f"{self.code}: {self.out}{self.err}"
        return self

    @property
    def sentence(self) -> str:
        """Standard error, which is one sentence."""
        assert self.err.startswith("rltrain: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.removeprefix("rltrain: ").strip()


class RunFiles:
    """The user's files of one run in `folder`, and its run folder `out`."""

    def __init__(self, folder: Path, **changes: Any):
        self.folder, self.out = folder, folder / "out"
        self.file = folder / "run.yaml"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "moody_reward.py").write_text(REWARD)
        self.feel()
        lines = [{"prompt": f"say {number}:", "answer": str(number)} for number in range(100, 164)]
        (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        spec = merged(SPEC, changes)
        document = {"kind": "RLTrainingRun", "metadata": {"name": "small"}, "spec": spec}
        document["apiVersion"] = "rltrain.dev/v1alpha1"
        self.file.write_text(yaml.safe_dump(document))

    def shards(self) -> None:
        """The same prompts in the same order as parquet files in the folder `shards`."""
        table = pa.Table.from_pylist(
            list(map(json.loads, (self.folder / "prompts.jsonl").read_text().splitlines()))
        )
        (self.folder / "shards").mkdir()
        for number, start in enumerate(range(0, table.num_rows, 25)):
            file = self.folder / "shards" / f"part-{number}.parquet"
            pq.write_table(table.slice(start, 25), file, row_group_size=10)

    def feel(self, moods: dict[int, str] | None = None, *, delay: float = 0.0) -> None:
        """The reward from now on: prompt index -> raise, hang, nan, huge, or holdFirst (whoever asks first is not answered
        before there is a file `let-go`); `delay`: seconds that every call takes."""
        temporary = self.folder / "moods.new"
        temporary.write_text(json.dumps({**(moods or {}), "delay": delay}))
        temporary.replace(self.folder / "moods.json")

    def arguments(self, *options: str) -> list[str]:
        return ["run", str(self.file), "--out", str(self.out), *options]

    def run(self, *options: str) -> Outcome:
        """Trains in this process."""
        return rltrain(*self.arguments(*options))

    def start(self, *options: str, **environment: str) -> Process:
        """Trains in a process of its own."""
        return Process(self.arguments(*options), self.folder, environment)

    @property
    def steps(self) -> list[StepRecord]:
        return read_metrics(self.out / "metrics.jsonl")

    def events(self, kind: str) -> list[dict[str, Any]]:
        return read_events(self.out / "metrics.jsonl", kind)

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "summary.json").read_text())
        return found

    @property
    def weights(self) -> bytes:
        """The trained policy, bit by bit."""
        return (self.out / "final" / "model.safetensors").read_bytes()

    @property
    def critic(self) -> bytes:
        """Weights and optimizer of the critic in the last checkpoint, bit by bit."""
        return self._last_checkpoint().file("critic.safetensors").read_bytes()

    @property
    def adapter(self) -> bytes:
        """LoRA's adapters in the last checkpoint, bit by bit."""
        return self._last_checkpoint().file("adapter/adapter_model.safetensors").read_bytes()

    def _last_checkpoint(self) -> Checkpoint:
        last = CheckpointStore(self.out / "checkpoints", read_only=True).load_latest()
        assert last is not None
        return last

    @property
    def checkpoints(self) -> list[int]:
        """Steps of the finished checkpoints."""
        store = CheckpointStore(self.out / "checkpoints", read_only=True)
        return [info.step for info in store.list()]

    def assert_nothing_lost_or_twice(self) -> None:
        """Every step once; every prompt index handed out is trained, dropped, or waits in the last checkpoint."""
        steps = self.steps
        assert [record.step for record in steps] == list(range(1, len(steps) + 1))
        trained = [prompt for record in steps for prompt in record.prompts]
        last = CheckpointStore(self.out / "checkpoints", read_only=True).load_latest()
        assert last is not None
        assert last.step == steps[-1].step
        buffer = last.metadata["buffer"]
        waiting = [*buffer["in_flight"], *(ready["group_id"] for ready in buffer["ready"])]
        dropped = sum(buffer["drops"].values())  # also since that step, whose record may not know of it
        assert len({*trained, *waiting}) == len(trained) + len(waiting), "a prompt comes twice"
        assert len(trained) + len(waiting) + dropped == buffer["cursor"], "a prompt is lost"


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` put over it, field by field."""
    both = dict(base)
    for name, value in changes.items():
        inner = both.get(name)
        both[name] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return both


def rltrain(*arguments: str) -> Outcome:
    """The command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())


class Process:
    """`rltrain` in a process (and process group) of its own."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: dict[str, str],
        module: str = "rl_trainer.cli",
    ):
        self._out, self._err = folder / "stdout.txt", folder / "stderr.txt"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                cwd=folder,
                env={**clean, "OMP_NUM_THREADS": "1", **environment},
            )

    def wait_for(self, condition: Callable[[], bool], timeout: float = 400.0) -> None:
        """Returns as soon as `condition` holds; the process must live that long."""

        def holds() -> bool:
            assert self.process.poll() is None, f"ended too early: {self.outcome()}"
            return condition()

        until(holds, timeout)

    def send(self, number: signal.Signals) -> None:
        """A signal to the process alone."""
        self.process.send_signal(number)

    def send_to_group(self, number: signal.Signals) -> None:
        """A signal to the process and everything it started, as a terminal or `timeout` does."""
        os.killpg(self.process.pid, number)

    def finish(self, timeout: float = 400.0) -> Outcome:
        """Waits for its end."""
        try:
            self.process.wait(timeout)
        finally:
            self.kill()
        return self.outcome()

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        with contextlib.suppress(ProcessLookupError):
            self.send_to_group(signal.SIGKILL)
        self.process.wait(60)

    def outcome(self) -> Outcome:
        return Outcome(self.process.poll() or 0, self._out.read_text(), self._err.read_text())

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def ray_here() -> dict[str, str]:
    """Makes another process join this process's Ray: it saves the start of a second one."""
    return {"RAY_ADDRESS": ray.get_runtime_context().gcs_address, "RAY_AUTH_MODE": "token"}


def below(pid: int | None = None) -> list[tuple[psutil.Process, str]]:
    """Processes below this one, or another, that have not ended, and what each was called with."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # some come and go meanwhile
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append((child, " ".join(child.cmdline())))
    return found


def actors(role: str) -> list[psutil.Process]:
    """Processes below this one that run an actor of `role`."""
    return [child for child, command in below() if command.startswith(f"ray::{role}Actor")]


def until(
    condition: Callable[[], bool], timeout: float = 400.0, why: Callable[[], str] = lambda: "it does not hold"
) -> None:
    """Looks at `condition` until it holds; `why` says what is the matter where it does not in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s: {why()}"
        time.sleep(0.02)


@contextmanager
def meanwhile(condition: Callable[[], bool], action: Callable[[], None]) -> Iterator[None]:
    """While the block trains: `action` as soon as `condition` holds. The block's end waits for it."""
    problem: list[BaseException] = []

    def act() -> None:
        try:
            until(condition)
            action()
        except BaseException as error:
            problem.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()
    assert not problem, problem
