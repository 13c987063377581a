"""A learner in a process of its own, beside an engine: what it learns, it sends, and what the engine says, it scores.

Ways of its weights:

    blocks       in host memory as the object store has them, made by `weights.payload`
    same device  by `weights.transports.ipc`, CUDA IPC: the engine reads the learner's memory of the same GPU (on CPUs the
                 host's)
    collective   broadcast of these blocks by `weights.transports.collective`, NCCL between two GPUs (on CPUs gloo)
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from gpu_lane.child import ChildFailed, end_with, sentence
from gpu_lane.job import Job
from gpu_lane.learner import one_gpu
from gpu_lane.memory import Peak
from gpu_lane.workload import run_spec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from rl_trainer.trajectory import Trajectory

Way = Literal["blocks", "same device", "collective"]
WAYS: tuple[Way, ...] = ("blocks", "same device", "collective")


class LearnerProcess:
    """The learner, seen from the engine's process; use it as a context manager."""

    def __init__(self, job: Job, *, lora: bool, learns: bool, gpu: int = 0) -> None:
        """Starts it. `learns`: it has an optimizer, else it only has weights; `gpu`: index of the one that it sees."""
        import torch.multiprocessing

        context = torch.multiprocessing.get_context("spawn")
        self._job = job
        self._end, theirs = context.Pipe()
        arguments = (theirs, job.plain(), lora, learns, one_gpu(job, gpu), os.getpid())
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self.peak()  # it is there

    def update(self, samples: Sequence[Trajectory]) -> float:
        """One optimizer step; its loss."""
        loss: float = self._ask("update", list(samples))
        return loss

    def score(self, samples: Sequence[Trajectory]) -> list[npt.NDArray[np.float32]]:
        """Log-probs of every sampled token, float32 [S] for each sample."""
        found: list[npt.NDArray[np.float32]] = self._ask("score", list(samples))
        return found

    def peak(self) -> int:
        """The highest memory of the process, in bytes."""
        found: int = self._ask("peak")
        return found

    def send(self, way: Way, version: int) -> Mapping[str, torch.Tensor]:
        """The weights, by this way, under Hugging Face names; of `same device` they are the other process's until `done`."""
        if way == "blocks":
            from rl_trainer.weights.payload import unpack_weights

            return unpack_weights(self._ask("blocks", version))
        if way == "same device":
            return self._map(version)
        return self._receive(version)

    def done(self) -> None:
        """The weights that were sent have been taken over."""
        self._ask("forget")

    def _map(self, version: int) -> Mapping[str, torch.Tensor]:
        import torch

        from rl_trainer.weights.transports.ipc import IpcReceiver

        receiver = IpcReceiver(_Blocks(), "the engine", device=torch.device(self._job.device))
        return receiver.receive(self._ask("shared", version), self._job.deadline)

    def _receive(self, version: int) -> Mapping[str, torch.Tensor]:
        from rl_trainer.weights.transports.collective import CollectiveReceiver
        from rl_trainer.weights.transports.invitation import Invitation
        from rl_trainer.weights.transports.publication import Publication

        invitation = Invitation(
            version=version,
            group=f"version {version}",
            address=tuple(self._ask("meet")),
            size=2,
            seconds=self._job.deadline,
            backend="nccl" if self._job.device == "cuda" else "gloo",
        )
        receiver = CollectiveReceiver(_Blocks(), "the engine")
        self._end.send(("broadcast", (invitation,)))
        failed = receiver.join(invitation, rank=1)
        self._answer()
        if failed is not None:
            raise ChildFailed(failed)
        return receiver.receive(Publication(version, "collective", []), self._job.deadline)

    def _ask(self, what: str, *arguments: Any) -> Any:
        self._end.send((what, arguments))
        return self._answer()

    def _answer(self) -> Any:
        if not self._end.poll(self._job.deadline):
            raise ChildFailed(
                f"the learner beside the engine had no answer within {self._job.deadline:.0f} s"
            )
        try:
            found, error = self._end.recv()
        except EOFError:
            raise ChildFailed("the process of the learner beside the engine has ended") from None
        if error is not None:
            raise ChildFailed(f"the learner beside the engine: {error}")
        return found

    def __enter__(self) -> LearnerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()


def ways(job: Job) -> tuple[list[Way], list[str]]:
    """Those that are possible here, and sentences on the others."""
    if job.gpus == 1:
        return [way for way in WAYS if way != "collective"], [
            "weights by collective: NCCL joins processes on different GPUs, and one is here"
        ]
    return list(WAYS), []


def sender_gpu(job: Job, way: Way) -> int:
    """The index of the GPU that the learner takes; the engine has the first."""
    return 1 if way == "collective" and job.gpus > 1 else 0


class _Blocks:
    """Implements `weights.transports.base.Store` where blocks are their own handles, and the last one alone is wanted."""

    wanted: Any = None

    def put(self, block: Any) -> Any:
        self.wanted = block
        return block

    def watch(self, handle: Any) -> Callable[[], bool]:
        return lambda: self.wanted is handle

    def get(self, handles: Sequence[Any], timeout: float) -> list[Any]:
        return list(handles)

    def check(self, handles: Sequence[Any], blocks: Sequence[Any], check: Callable[[Any], None]) -> None:
        for block in blocks:
            check(block)


def _serve(
    calls: Connection, job: dict[str, Any], lora: bool, learns: bool, env: dict[str, str], parent: int
) -> None:
    """The process: answers calls with (found, None) or (None, sentence)."""
    end_with(parent)
    os.environ.update(env)
    served = None
    while True:
        try:
            what, arguments = calls.recv()
        except EOFError:
            return
        try:
            if served is None:
                served = _Served(Job(**job), lora, learns)
            calls.send((getattr(served, what)(*arguments), None))
        except BaseException as error:
            traceback.print_exc()
            calls.send((None, sentence(error)))


class _Served:
    def __init__(self, job: Job, lora: bool, learns: bool) -> None:
        import torch

        from rl_trainer.learner.rank import Learner

        if job.device == "cpu":
            torch.set_num_threads(1)
        self._job = job
        self._peak = Peak(job)
        # A learner with LoRA that has not begun has weights and no optimizer.
        self._spec = run_spec(job, lora=lora or not learns)
        self._learner = Learner(job.model, self._spec, device=job.device)
        if learns:
            self._learner.start_reinforcement()
        self._blocks = _Blocks()
        self._sharer: Any = None
        self._broadcaster: Any = None

    def _source(self) -> Any:
        import torch

        from rl_trainer.learner.sources import weight_source

        return weight_source(self._learner, getattr(torch, self._job.dtype))

    def peak(self) -> int:
        return self._peak.bytes()

    def update(self, samples: list[Trajectory]) -> float:
        from rl_trainer.algorithms.denominators import LossDenominators
        from rl_trainer.learner.rank import MiniBatch

        denominators = LossDenominators.from_lengths([int(one.mask.sum()) for one in samples])
        return float(self._learner.update([MiniBatch(samples, denominators)]).metrics["loss"])

    def score(self, samples: list[Trajectory]) -> list[npt.NDArray[np.float32]]:
        import torch

        from rl_trainer.learner.batch import collate
        from rl_trainer.learner.packing import micro_batches

        found: dict[int, npt.NDArray[np.float32]] = {}
        lengths = [len(sample.tokens) for sample in samples]
        with torch.no_grad():
            for cut in micro_batches(lengths, self._spec.learner.tokens_per_micro_batch):
                batch = collate([samples[index] for index in cut], self._job.device)
                log_probs, _ = self._learner.policy(batch, self._spec.sampler.temperature)
                rows, values = batch.sequence_ids.cpu().numpy(), log_probs.cpu().numpy()
                found |= {index: values[rows == row] for row, index in enumerate(cut)}
        return [found[index] for index in range(len(samples))]

    def blocks(self, version: int) -> list[Any]:
        from rl_trainer.weights.payload import pack_weights

        return list(pack_weights(self._source(), version))

    def shared(self, version: int) -> Any:
        from rl_trainer.weights.transports.base import Offer
        from rl_trainer.weights.transports.ipc import IpcPublisher

        if self._sharer is None:
            self._sharer = IpcPublisher(self._blocks, 0)
        published = self._sharer.publish(Offer(self._source, device=self._learner.device), version)
        assert published.way == "ipc", "the device has no room for another copy of the weights"
        return published

    def forget(self) -> None:
        self._blocks.wanted = None
        if self._sharer is not None:
            self._sharer.withdraw()

    def meet(self) -> tuple[str, int]:
        from rl_trainer.weights.transports.collective import Broadcaster

        if self._broadcaster is None:
            self._broadcaster = Broadcaster(_Blocks(), "127.0.0.1")
        address: tuple[str, int] = self._broadcaster.point.address
        return address

    def broadcast(self, invitation: Any) -> None:
        from rl_trainer.weights.transports.publication import Publication

        publication = Publication(invitation.version, "collective", self.blocks(invitation.version))
        failed = self._broadcaster.send(publication, invitation).result()
        if failed is not None:
            raise ChildFailed(failed)
