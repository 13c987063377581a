"""The job on Ray Data: parts are read on this node, answered by engines wherever there is room, and come back as files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import ray
import ray.data
import torch
from ray.data._internal.execution.execution_callback import ExecutionCallback
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rl_api.errors import ActorDied, DeadlineExceeded, RLTrainError
from rl_api.printable import printable
from rl_generate.encoding import Format, encode
from rl_generate.generator import Generator
from rl_generate.job import Options, parts_at_once
from rl_generate.rows import added
from rl_generate.source import Content, Part, Source, rows_of
from rl_trainer.error_text import first_line
from rl_trainer.model.shared_folder import SharedFolder
from rl_trainer.model.tokenizer import load_tokenizer
from rl_trainer.placement.own_device import own_device
from rl_trainer.rollout.engines.base import GenerationRequest, SamplingParams
from rl_trainer.rollout.engines.create import create_engine
from rl_trainer.storage.files import Closes

# Sequences that an engine generates at once, where the user does not say it.
SLOTS: Final = {"cpu": 64, "cuda": 128}
# Loading a large model from a slow disk takes minutes; an engine of the library says nothing before a batch has ended.
START_SECONDS: Final = 900.0
SILENT_SECONDS: Final = 1800.0
_REPORT_SECONDS = 0.5
_END_SECONDS = 30.0
# Ray Data replaces an engine that dies, without end: so often, for each, is enough.
_RESTARTS = 3


@dataclass(frozen=True)
class Setup:
    """What every engine is told.

    Attributes:
        model: the policy's folder.
        options: of the job.
        format, schema: of the output; the schema is there for parquet alone.
        slots: sequences that an engine generates at once.
        threads: CPU threads of an engine.
        gpu: whether it has one.
    """

    model: SharedFolder
    options: Options
    format: Format
    schema: pa.Schema | None
    slots: int
    threads: int
    gpu: bool


@dataclass(frozen=True)
class Done:
    """A part that is answered: its file, and what is in it."""

    number: int
    content: bytes
    rows: int
    errors: int
    tokens: int


@dataclass(frozen=True)
class Look:
    """How far it is: rows of parts that have not come back, tokens, engines that were started, and have loaded the model."""

    rows: int
    tokens: int
    started: int = 0
    loaded: int = 0


class _Counter:
    """Hears from all engines how far they are."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[int, int]] = {}
        self._started = 0

    def begin(self) -> None:
        self._started += 1

    def say(self, engine: str, rows: int, tokens: int) -> None:
        self._said[engine] = (rows, tokens)

    def look(self) -> Look:
        said = self._said.values()
        return Look(
            sum(rows for rows, _ in said), sum(tokens for _, tokens in said), self._started, len(said)
        )


class _Reader:
    """Reads parts, one after another, on the driver's node: only that has the disk and the credentials."""

    def __init__(self, source: Source, parts: list[Part]) -> None:
        self._source, self._parts = source, {part.number: part for part in parts}

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[Any]]:
        number = int(batch["part"][0])
        try:
            found: Any = self._source.read(self._parts[number])
        except RLTrainError as error:
            found = error
        return {"part": [number], "content": [pickle.dumps(found)]}


class _Engine:
    """Answers parts, many at a time. What cannot be done comes back as the error that says so."""

    def __init__(self, setup: Setup, counter: Any) -> None:
        self._setup, self._counter = setup, counter
        self._generator: Generator | None = None
        self._failure: RLTrainError | None = None
        self._reporter: asyncio.Task[None] | None = None
        counter.begin.remote()
        try:
            self._load()
        except RLTrainError as error:
            self._failure = error

    def _load(self) -> None:
        setup = self._setup
        device = own_device() if setup.gpu else "cpu"
        torch.set_num_threads(setup.threads)
        with setup.model.opened() as folder:
            self._tokenizer = load_tokenizer(folder)
            self._loaded = create_engine(
                folder,
                slots=setup.slots,
                dtype=torch.float32 if device == "cpu" else torch.bfloat16,
                device=device,
            )
        self._loaded.add([GenerationRequest("warm", np.zeros(2, np.int32), SamplingParams(2))])
        while self._loaded.active or self._loaded.waiting:
            self._loaded.step()

    async def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[Any]]:
        number = int(batch["part"][0])
        found = pickle.loads(batch["content"][0])
        try:
            if isinstance(found, RLTrainError):
                raise found
            if self._failure is not None:
                raise self._failure
            done: Any = await self._answer(number, found)
        except RLTrainError as error:
            done = error
        return {"part": [number], "done": [pickle.dumps(done)]}

    async def _answer(self, number: int, contents: list[Content]) -> Done:
        setup = self._setup
        if self._generator is None:
            self._generator = Generator(self._loaded, self._tokenizer, setup.options)
            self._reporter = asyncio.create_task(self._report(self._generator))
        rows = rows_of(contents)
        outcomes = await self._generator.answer(rows.rows, rows.problems)
        columns, n = setup.options.columns, setup.options.n
        content = encode(rows, added(outcomes, columns, n), columns, setup.format, setup.schema, n)
        return Done(
            number,
            content,
            len(outcomes),
            sum(bool(one.error) for one in outcomes),
            sum(answer.tokens for one in outcomes for answer in one.answers),
        )

    async def _report(self, generator: Generator) -> None:
        name = ray.get_runtime_context().get_worker_id()
        while True:
            self._counter.say.remote(name, generator.rows, generator.tokens)
            await asyncio.sleep(_REPORT_SECONDS)


class _Ender(ExecutionCallback):  # type: ignore[misc]  # Ray Data has no types
    """Ends Ray Data's execution, which nothing else does before it has brought something: Ray ends a process in which a
    thread still asks after `ray.shutdown`, with status 1 and without a word."""

    # Of the process, as Ray Data makes an object of this class by itself.
    asked: ClassVar = threading.Event()

    def on_execution_step(self, executor: Any) -> None:
        if self.asked.is_set():
            raise _Ended


class _Ended(Exception):
    """Nobody wants the rest."""


class Pipeline(Closes):
    """Answers `parts` of `source`; iterate over `done`, and close it before Ray ends. Ray is there already; one at a time.

    Args:
        source, parts: what is asked.
        setup: for the engines.
        engines: how many.
        debug: show Ray Data's own lines.
    """

    def __init__(
        self, source: Source, parts: list[Part], setup: Setup, engines: int, *, debug: bool = False
    ) -> None:
        node = ray.get_runtime_context().get_node_id()
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        self._counter = ray.remote(num_cpus=0, scheduling_strategy=here)(_Counter).remote()
        self._look, self._engines = Look(0, 0), engines
        self._results: queue.Queue[Done | BaseException | None] = queue.Queue()
        _prepare(debug)
        self._pumping = threading.Thread(target=self._pump, name="ray data", daemon=True)
        rows = max(part.rows for part in parts)
        at_once = parts_at_once(setup.slots, rows * setup.options.n)
        data = ray.data.from_items([{"part": part.number} for part in parts], override_num_blocks=len(parts))
        data = data.map_batches(
            _Reader,
            fn_constructor_args=(source, parts),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=1),
            num_cpus=0,
            label_selector={"ray.io/node-id": node},
        )
        self._data = data.map_batches(
            _Engine,
            fn_constructor_args=(setup, self._counter),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(
                size=engines,
                max_concurrent_calls_per_actor=at_once,
                max_tasks_in_flight_per_actor=at_once + 2,
            ),
            num_cpus=1,
            num_gpus=1 if setup.gpu else None,
        )

    def done(self) -> Iterator[Done | None]:
        """Parts as they are done; None now and then, when `look` has something new.

        Raises:
            RLTrainError: what an engine or the reader has said.
            DeadlineExceeded: no engine comes up, or nothing has come from them for long.
            ActorDied: engines die again and again, or Ray Data gives up.
        """
        self._pumping.start()
        moved, last = time.monotonic(), self._look
        while True:
            with contextlib.suppress(queue.Empty):
                found = self._results.get(timeout=_REPORT_SECONDS)
                if found is None:
                    return
                if isinstance(found, RLTrainError):
                    raise found
                if isinstance(found, BaseException):
                    raise ActorDied(
                        f"Ray Data has ended: {printable(first_line(found), 300)}; what is done is kept, and the same "
                        "command goes on (--debug shows Ray's own lines)"
                    ) from found
                moved = time.monotonic()
                yield found
                continue
            look = self.look()
            if look != last:
                moved, last = time.monotonic(), look
            if look.started > self._engines * (1 + _RESTARTS):
                raise ActorDied(
                    f"engines have died {look.started - self._engines} times, most often for want of memory; what is "
                    "done is kept, and the same command goes on (with fewer --replicas, or --max-new-tokens)"
                )
            patience = SILENT_SECONDS if look.loaded else START_SECONDS
            if time.monotonic() - moved > patience:
                raise DeadlineExceeded(
                    f"nothing has come from the engines for {patience:.0f} s; are there enough CPUs, GPUs and memory, and "
                    "is the disk fast enough? The same command goes on with what is missing"
                )
            yield None

    def look(self) -> Look:
        """How far it is."""
        with contextlib.suppress(ray.exceptions.RayError):
            self._look = ray.get(self._counter.look.remote(), timeout=10)
        return self._look

    def close(self) -> None:
        """What is under way is given up; returns when no thread asks Ray any more, or after `_END_SECONDS`."""
        _Ender.asked.set()
        if self._pumping.is_alive():
            self._pumping.join(_END_SECONDS)

    def _pump(self) -> None:
        """On a thread of its own: the main one hears signals and deadlines."""
        try:
            for batch in self._data.iter_batches(batch_size=1, batch_format="numpy", prefetch_batches=0):
                self._results.put(pickle.loads(batch["done"][0]))
            self._results.put(None)
        except BaseException as error:  # handed to the main thread
            self._results.put(error)


def _prepare(debug: bool) -> None:
    context = ray.data.DataContext.get_current()
    _Ender.asked.clear()
    context.custom_execution_callback_classes = [_Ender]
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    if not debug:
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
