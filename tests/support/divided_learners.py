"""Learners of several ranks in processes of this machine, which stay for many cases: starting them takes seconds."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
from kept_blocks import KeptBlocks
from trajectories import sampled

from rl_api import RunSpec
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.value_targets import ValueTargets
from rl_trainer.checkpoint.shards import shards_of
from rl_trainer.checkpoint.state import ADAPTER, CRITIC, OPTIMIZER, WEIGHTS, SavedFiles
from rl_trainer.checkpoint.tensor_file import ShardWriter
from rl_trainer.learner.layout import DividedLayout
from rl_trainer.learner.rank import Learner, MiniBatch
from rl_trainer.learner.results import UpdateResult
from rl_trainer.learner.saving import Save, contents
from rl_trainer.learner.sources import offer
from rl_trainer.model.export import describe_weights
from rl_trainer.model.folder import opened_tensors
from rl_trainer.model.rows import whole
from rl_trainer.trajectory import Trajectory
from rl_trainer.weights.transports.adapter import AdapterPublisher, AdapterReceiver
from rl_trainer.weights.transports.ipc import IpcPublisher, IpcReceiver
from rl_trainer.weights.transports.object_store import StorePublisher, StoreReceiver

DEADLINE = 240.0


@dataclass(frozen=True)
class Case:
    """A short run: steps `first` up to `steps`.

    `busy`: so many parts of a batch have samples, the others none; None: all have. Ranks that share sequences have a part
    together. `parts`: in so many each step is learned. `saved`:
    the folder that is written at the end; `resumed`: the one that is gone on from. `warm`: whether a supervised step comes
    first. `away`: whether tensors are moved out and in again before every step and every read.
    """

    folder: Path
    learner: dict[str, object] = field(default_factory=dict)
    algorithm: dict[str, object] = field(default_factory=dict)
    model: dict[str, object] = field(default_factory=dict)
    steps: int = 5
    busy: int | None = None
    first: int = 0
    parts: int = 1
    warm: bool = False
    saved: Path | None = None
    resumed: Path | None = None
    away: bool = False

    @property
    def spec(self) -> RunSpec:
        """The run."""
        # AdamW makes steps of full length of the rounding that is all of some gradients, with the usual epsilon.
        optimizer = {"epsilon": 1e-4}
        return RunSpec.model_validate(
            {
                "model": {"source": str(self.folder), **self.model},
                "task": {"environment": "reasoning-gym", "name": "chain_sum"},
                "algorithm": {
                    "learningRate": 3e-3,
                    "optimizer": optimizer,
                    "gradientClip": 0.5,
                    **self.algorithm,
                },
                "learner": {"tokensPerMicroBatch": 40, **self.learner},
                "stop": {"maxSteps": 10},
            }
        )


@dataclass(frozen=True)
class Outcome:
    """What a run gave: losses and gradient norms by step, weights (and the critic's) at the end, estimates of samples."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, np.ndarray]
    estimates: list[np.ndarray]
    held: int
    """Numbers that this rank keeps of the policy."""


def samples(count: int, seed: int, *, valued: bool = False) -> list[Trajectory]:
    """Random trajectories, with returns and values where there is a critic."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        length = int(rng.integers(6, 20))
        mask = np.zeros(length, dtype=np.bool_)
        mask[4:] = True
        log_probs = rng.normal(-4.2, 0.1, length - 4).astype(np.float32)
        advantage: Any = float(rng.normal())
        if valued:
            returns, values = rng.normal(size=length - 4), rng.normal(size=length - 4) * 0.1
            advantage = ValueTargets(
                (returns - values).astype(np.float32), returns.astype(np.float32), values.astype(np.float32)
            )
        made.append(sampled(rng.integers(3, 60, length).astype(np.int32), mask, log_probs, advantage))
    return made


def run(case: Case, rank: int, ranks: int) -> Outcome:
    """The run on this rank."""
    torch.set_num_threads(1)
    spec = case.spec
    learner = Learner(case.resumed or case.folder, spec, rank=rank, ranks=ranks)
    part_of_batch, all_parts = rank // spec.learner.context_size, ranks // spec.learner.context_size
    if case.warm:
        batch = samples(3, 1000)
        denominators = LossDenominators.from_lengths([int(s.mask.sum()) for s in batch])
        learner.supervise(batch[part_of_batch::all_parts], denominators, 1e-3)
    if case.resumed is None:
        learner.start_reinforcement()
    else:
        resume(learner, case.folder, case.resumed)

    def moved() -> Learner:
        if case.away:
            assert learner.offload() == learner.onload()  # whole pages, of which a small shard may have none
        return learner

    losses, norms, estimates = [], [], []
    busy = case.busy or all_parts
    for step in range(case.first, case.steps):
        parts = []
        for part in range(spec.algorithm.mini_batches):
            batch = samples(7, 10 * step + part, valued=learner.critic is not None)
            denominators = LossDenominators.from_lengths([int(s.mask.sum()) for s in batch])
            own = batch[part_of_batch::busy] if part_of_batch < busy else []
            parts.append(MiniBatch(own, denominators))
        result = moved().update(parts) if case.parts == 1 else in_parts(moved, parts, case.parts)
        losses.append(result.metrics["loss"])
        norms.append(result.grad_norm)
    if case.saved is not None:
        save(moved(), case.folder, case.saved)
    found = moved().token_estimates(samples(3, 99)[: 3 if part_of_batch == 0 else 1])
    for arrays in (found.kl, found.values):
        if arrays is not None:
            estimates.append(np.concatenate(arrays[:3]))
    check_mapped(learner)
    if spec.learner.lora is not None:
        check_adapters(learner)
    held = sum(
        p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in learner.model.parameters()
    )
    return Outcome(losses, norms, weights(moved()), estimates, held)


def in_parts(moved: Callable[[], Learner], step: Sequence[MiniBatch], count: int) -> UpdateResult:
    """The same step as by `update`, of which a `count`-th of this rank's samples comes at a time."""
    (whole,) = step
    for part in range(count):
        begin, end = (len(whole.samples) * at // count for at in (part, part + 1))
        moved().accumulate(MiniBatch(whole.samples[begin:end], _of_part(whole.denominators, part, count)))
    return moved().apply()


def _of_part(whole: LossDenominators, part: int, count: int) -> LossDenominators:
    """Counts that add up to those of the whole, the same on all ranks."""
    tokens, sequences = (
        total * (part + 1) // count - total * part // count for total in (whole.tokens, whole.sequences)
    )
    return LossDenominators(tokens, sequences, whole.constant_length)


def pieces(case: Case, rank: int, ranks: int) -> int:
    """Makes the weights in pieces of 500 bytes and whole, which has to be the same; how many pieces the largest one has."""
    learner = Learner(case.folder, case.spec, rank=rank, ranks=ranks)
    most = 0
    for name, tensor in learner.model.hf_tensors().items():  # type: ignore[operator]
        made = list(tensor.pieces(500))
        together = torch.cat(made) if len(made) > 1 else made[0]
        assert torch.equal(together, tensor.make()), name
        most = max(most, len(made))
    return most


def save(learner: Learner, base: Path, folder: Path) -> None:
    """What a checkpoint holds: this rank's part of it; the limits are small beside the weights, of 40 to 200 kB."""
    parts = {part: "model" if part == WEIGHTS else part for part in contents(learner)}
    save = Save(learner, parts, limit=30_000, piece=5_000)
    with ShardWriter(folder, save.heads) as writer:
        for found in save.rounds():
            for name, data in found:
                writer.write(name, data)
        digests = writer.finish()
    if learner.rank == 0:
        describe_weights(base, folder, SavedFiles(digests, save.weight_map, save.weight_bytes))
        (folder / "steps").write_text(str(learner.training.steps))


def resume(learner: Learner, initial: Path, folder: Path) -> None:
    """Takes up what `save` wrote, as `LearnerActor.restore` does."""
    with ExitStack() as stack:
        there = [path.name for path in folder.iterdir()]
        files = {
            part: stack.enter_context(opened_tensors(folder, names))
            for part in (OPTIMIZER, ADAPTER, CRITIC)
            if (names := shards_of(part, there))
        }
        learner.resume(initial, files.get(ADAPTER))
        learner.training.optimizer.load(files[OPTIMIZER])
        learner.training.steps = int((folder / "steps").read_text())
        learner.load_critic(files.get(CRITIC))


def divided(spec: Any, *, ranks: int, **options: Any) -> DividedLayout:
    """`layout_of` that divides whatever it is given."""
    return DividedLayout(ranks, ranks, checkpointing=spec.activation_checkpointing, **options)


def check_mapped(learner: Learner) -> None:
    """What samplers map in the first rank's memory is, bit by bit, what all ranks publish through a store."""
    for name, found, expected in _also_stored(learner, "ipc", IpcPublisher, IpcReceiver, DEADLINE):
        assert torch.equal(found, expected), name


def check_adapters(learner: Learner) -> None:
    """What samplers merge of the adapters that all ranks publish is what they publish merged."""
    for name, found, expected in _also_stored(learner, "adapter", AdapterPublisher, AdapterReceiver, 1.0):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7, msg=name)


def _also_stored(
    learner: Learner, way: str, publisher: Callable[..., Any], receiver: Callable[..., Any], seconds: float
) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Of each tensor what comes this way, and what comes through a store; on ranks other than the first nothing."""
    store, whole_store = KeptBlocks(), KeptBlocks()
    offered = offer(learner, torch.float32)
    published = publisher(store, learner.rank).publish(offered, 1)
    stored = StorePublisher(whole_store, learner.rank).publish(offered, 1)
    if published is None or stored is None:
        assert learner.rank
        return []
    assert published.way == way
    expected = StoreReceiver(whole_store, "here").receive(stored, 1.0)
    found = receiver(store, "here").receive(published, seconds)
    assert found.keys() == expected.keys()
    return [(name, found[name], value) for name, value in expected.items()]


def weights(learner: Learner) -> dict[str, np.ndarray]:
    """Parameters of policy and critic, whole."""
    models = {"policy": learner.model}
    if learner.critic is not None:
        models["critic"] = learner.critic.model
    return {
        f"{kind}/{name}": whole(parameter).cpu().numpy().copy()
        for kind, model in models.items()
        for name, parameter in model.named_parameters()
    }


def _serve(rank: int, calls: Connection) -> None:
    torch.set_num_threads(1)
    while (call := calls.recv()) is not None:
        function, case, ranks, store = call
        try:
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
            try:
                calls.send((function(case, rank, ranks), None))
            finally:
                dist.destroy_process_group()
        except BaseException:
            calls.send((None, traceback.format_exc()))


class Ranks:
    """Processes that run cases; to be closed."""

    def __init__(self, count: int, folder: Path):
        self._count, self._folder, self._calls = count, folder, 0
        self._start()

    def _start(self) -> None:
        # torch and the library are imported once, not by each.
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["rl_trainer.learner.rank", "transformers.modeling_utils"])
        self._processes, self._ends = [], []
        for rank in range(self._count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs), daemon=True)
            process.start()
            self._processes.append(process)
            self._ends.append(ours)

    def __call__(
        self, case: Any, ranks: int, function: Callable[[Any, int, int], Any] = run
    ) -> Sequence[Any]:
        """What `function(case, rank, ranks)` gives on each of the first `ranks` processes, which make a process group."""
        self._calls += 1
        store = self._folder / f"store-{self._calls}"
        for end in self._ends[:ranks]:
            end.send((function, case, ranks, store))
        found = []
        for rank, end in enumerate(self._ends[:ranks]):
            if not end.poll(DEADLINE):
                raise TimeoutError(f"rank {rank} of {ranks} gave nothing within {DEADLINE:.0f} s: {case}")
            result, error = end.recv()
            if error is not None:
                self.close()  # the others may wait for this one
                self._start()
                raise AssertionError(f"rank {rank} of {ranks}: {error}")
            found.append(result)
        return found

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        forkserver._forkserver._stop()  # type: ignore[attr-defined]  # it would stay as long as this process
