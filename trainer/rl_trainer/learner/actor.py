"""The Ray actor around one `Learner`; `learner.group` is the driver's handle on all of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist

from rl_api import RunSpec
from rl_api.errors import CheckpointError, RLTrainError
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.buffer.payloads import fetch_payloads
from rl_trainer.checkpoint.random_state import capture_rng, restore_rng
from rl_trainer.checkpoint.remote import look_at
from rl_trainer.checkpoint.state import ADAPTER, CRITIC, OPTIMIZER, SavedLearners
from rl_trainer.checkpoint.tensor_file import Digests
from rl_trainer.flow.pulse import Pulse
from rl_trainer.flow.ray_store import RayStore
from rl_trainer.flow.store_pages import forget_store_pages
from rl_trainer.flow.worker import Worker
from rl_trainer.learner.host_memory import give_back_freed_memory
from rl_trainer.learner.measuring import LearnerWork, device_memory
from rl_trainer.learner.objective import load_objective
from rl_trainer.learner.rank import Learner, MiniBatch
from rl_trainer.learner.results import Begun, TokenEstimates, UpdateResult, Written
from rl_trainer.learner.saving import Save, Writing, contents
from rl_trainer.learner.share import Share
from rl_trainer.learner.sources import offer
from rl_trainer.model.folder import TensorFile, opened_tensors
from rl_trainer.model.shared_folder import SharedFolder
from rl_trainer.observe.timeline import Span
from rl_trainer.placement.own_device import own_device, own_node
from rl_trainer.profile.gpu import gpu_meter
from rl_trainer.storage.ownership import Upload
from rl_trainer.storage.remote_folder import RemoteFolder
from rl_trainer.trajectory import Trajectory, unpack
from rl_trainer.weights.stream import Piece
from rl_trainer.weights.transports.choose import all_beside
from rl_trainer.weights.transports.collective import Broadcaster
from rl_trainer.weights.transports.create import create_publisher
from rl_trainer.weights.transports.invitation import Invitation
from rl_trainer.weights.transports.publication import Publication

# Gloo and NCCL give up on a collective after this long: a dead rank is found much sooner by the driver.
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
# Without a byte moved to an object store: of files, below the driver's deadline for a round, and of a first try.
_UPLOAD_SECONDS, _PROBE_SECONDS = 240.0, 60.0


class LearnerActor(Worker):
    """One rank in its own process."""

    def __init__(
        self, rank: int, ranks: int, spec: RunSpec, search: Path | None = None, pulse: Pulse | None = None
    ):
        super().__init__(f"learner {rank}")
        torch.set_num_threads(spec.learner.threads)
        self.rank, self.ranks, self.spec, self.search, self._pulse = rank, ranks, spec, search, pulse
        if pulse is not None:
            pulse.begin(self.name)  # while it loads, too
        self.learner: Learner
        self._store_of_weights = RayStore()
        self.publisher = create_publisher(
            spec.weight_sync.transport, self._store_of_weights, rank=rank, others=_others(spec)
        )
        self._broadcaster: Broadcaster | None = None
        self._rounds: Iterator[list[Piece]] = iter(())
        self._writing: Writing | None = None
        self._save = 0  # number of what is being saved, or was last
        self._reading = False  # rounds of it are still to be made
        self._told = ""

    def device_memory(self) -> int:
        """Bytes of the GPU that it computes on."""
        return device_memory()

    def rendezvous(self) -> tuple[str, int]:
        """Host and port of the store at which the ranks meet, which is open from now on; asked of rank 0."""
        self._store = self._open_store(ray.util.get_node_ip_address(), 0)
        return self._store.host, self._store.port

    def _open_store(self, host: str, port: int) -> Any:  # a dist.TCPStore, which has no types
        first = self.rank == 0
        return dist.TCPStore(  # type: ignore[attr-defined]
            host, port, self.ranks, first, COLLECTIVE_TIMEOUT, wait_for_workers=False
        )

    def start(self, folder: SharedFolder, address: tuple[str, int] | None) -> None:
        """Loads the model and joins the other ranks."""
        device = self.device = own_device()
        with self.spans.span("load model"):
            if address is not None:
                backend = "nccl" if device == "cuda" else "gloo"
                dist.init_process_group(
                    backend,
                    store=self._store if self.rank == 0 else self._open_store(*address),
                    rank=self.rank,
                    world_size=self.ranks,
                    timeout=COLLECTIVE_TIMEOUT,
                )
            if self.spec.learner.parallelism == "fsdp2":
                give_back_freed_memory()
            objective = load_objective(self.spec, self.search)
            with folder.opened() as model:
                self.learner = Learner(
                    model, self.spec, rank=self.rank, ranks=self.ranks, device=device, objective=objective
                )
        self._work = LearnerWork(self.learner, self.spans, own_node(), gpu_meter())
        self._tell_choice()

    def start_reinforcement(self) -> None:
        """The warm start is over: new optimizer, and the policy as it is now is the KL reference."""
        self.learner.start_reinforcement()
        self._tell_choice()

    def restore(
        self,
        saved: SavedLearners,
        shared: Mapping[str, SharedFolder],
        initial: SharedFolder | None,
        generators: bytes | None,
    ) -> None:
        """What a checkpoint holds, but for the weights, which came with `start`; and the random generators of this process.

        `shared`: the files of each part of `saved`; they are read tensor by tensor, and those of one part are gone from this
        node before the next are copied to it. `initial`: see `Learner.resume`.
        """
        learner = self.learner
        with (
            nullcontext() if initial is None else initial.opened() as base,
            _opened(shared, saved, ADAPTER) as adapter,
        ):
            learner.resume(base, adapter)
        self._tell_choice()
        with _opened(shared, saved, OPTIMIZER) as moments:
            assert moments is not None, "every checkpoint has them"
            learner.training.optimizer.load(moments)
        learner.training.steps = saved.optimizer_steps
        with _opened(shared, saved, CRITIC) as critic:
            learner.load_critic(critic)
        if generators is not None:  # None: the checkpoint was written with fewer learners
            restore_rng(generators)

    def _tell_choice(self) -> None:
        """One line in this process's log, and a span in the timeline, for a choice that was made since the last call."""
        choice, now = self.learner.head.choice, time.time()
        if choice.line and self.rank == 0 and choice.line != self._told:
            self._told = choice.line
            print(f"{self.name}: {choice.line}", file=sys.stderr, flush=True)
            self.spans.add("choose log-probs", now - choice.seconds, now, found=choice.line)

    def random_state(self) -> bytes:
        """The random generators of this process."""
        return capture_rng()

    def supervise(self, samples: Sequence[Trajectory], denominators: LossDenominators, rate: float) -> float:
        """One supervised step on this rank's samples; the mean loss over all ranks."""
        return self.learner.supervise(samples, denominators, rate)

    def update(
        self,
        share: Share,
        denominators: Sequence[LossDenominators],
        trained: int,
        version: int | None,
        train_policy: bool,
    ) -> tuple[UpdateResult, Publication | None, list[Span]]:
        """One training step on this rank's share; then `publish`, unless `version` is None.

        `denominators`: one per mini-batch. `trained`: the version of the weights that are trained. `train_policy`: see
        `Learner.update`.
        """
        with self._work.measured():
            parts = zip(self._trajectories(share), denominators, strict=True)
            batches = [MiniBatch(samples, whole) for samples, whole in parts]
            result = self.learner.update(batches, version=trained, train_policy=train_policy)
        published = None if version is None else self._publish(version)
        return result, published, self.spans.drain()

    def accumulate(self, share: Share, denominators: LossDenominators, trained: int) -> list[Span]:
        """See `Learner.accumulate`, for a share of one selection; `denominators` and `trained` as in `update`."""
        with self._work.measured():
            (samples,) = self._trajectories(share)
            self.learner.accumulate(MiniBatch(samples, denominators), version=trained)
        return self.spans.drain()

    def apply(self, version: int | None) -> tuple[UpdateResult, Publication | None, list[Span]]:
        """See `Learner.apply`; then `publish`, unless `version` is None."""
        with self._work.measured():
            result = self.learner.apply()
        published = None if version is None else self._publish(version)
        return result, published, self.spans.drain()

    def token_estimates(self, share: Share) -> tuple[TokenEstimates, list[Span]]:
        """See `Learner.token_estimates`, for a share of one selection."""
        with self._work.measured():
            (samples,) = self._trajectories(share)
            found = self.learner.token_estimates(samples)
        return found, self.spans.drain()

    def publish(self, version: int) -> tuple[Publication | None, list[Span]]:
        """See `Publisher.publish`; all ranks are asked at once."""
        return self._publish(version), self.spans.drain()

    def meeting_point(self) -> tuple[str, int]:
        """Where groups of this learner and samplers meet, for broadcasts; open from now on. Asked of rank 0."""
        if self._broadcaster is None:
            self._broadcaster = Broadcaster(RayStore(), ray.util.get_node_ip_address())
        return self._broadcaster.point.address

    def broadcast(self, publication: Publication, invitation: Invitation) -> None:
        """Begins to send a version that is published; returns at once. Asked of rank 0, after `meeting_point`."""
        assert self._broadcaster is not None
        self._broadcaster.send(publication, invitation)

    def broadcast_failure(self) -> str | None:
        """See `Broadcaster.failure`. Asked of rank 0, after `meeting_point`."""
        assert self._broadcaster is not None
        return self._broadcaster.failure()

    def _trajectories(self, share: Share) -> list[list[Trajectory]]:
        """The trajectories of each selection, with their advantages; each payload is fetched and unpacked once."""
        with self._work.fetching(len(share.payloads)) as said:
            payloads = fetch_payloads(share.payloads, said=said)
            self._work.read(share, payloads)
            groups = [unpack(payload) for payload in payloads]
        return [
            [
                replace(groups[group][member], advantage=advantage)
                for group, member, advantage in zip(
                    part.groups, part.members, part.member_advantages(), strict=True
                )
            ]
            for part in share.selections
        ]

    def _publish(self, version: int) -> Publication | None:
        offered = offer(self.learner, getattr(torch, self.spec.model.dtype))
        if self.rank:
            return self.publisher.publish(offered, version)
        before = self._store_of_weights.put_bytes
        with self.spans.span("publish", version=version) as noted:
            published = self.publisher.publish(offered, version)
            noted["bytes"] = self._store_of_weights.put_bytes - before
            noted["way"] = None if published is None else published.way
        return published and replace(published, node=own_node())

    def offload(self) -> int:
        """See `Learner.offload`. Raises RLTrainError too while the rounds of a checkpoint are not all made."""
        if self._reading:
            raise RLTrainError(
                f"learner {self.rank}: a checkpoint is read from its tensors; offload them when its rounds are over"
            )
        return self._moved("offload", self.learner.offload)

    def onload(self) -> int:
        """See `Learner.onload`."""
        return self._moved("onload", self.learner.onload)

    # -- checkpoints, asked of all ranks at once -------------------------------------------------------------------

    def saved(self) -> tuple[int, tuple[str, ...], bool]:
        """Optimizer steps, what there is to be saved, and whether it is on a GPU."""
        learner = self.learner
        return learner.training.steps, contents(learner), learner.device.type == "cuda"

    def check_stored(self, uri: str, files: Digests) -> tuple[str, str]:
        """See `look_at`."""
        return look_at(uri, files)

    def reaches(self, folder: Path) -> bool:
        """See `_reached`."""
        return _reached(folder)

    def begin_save(
        self,
        number: int,
        folder: Path,
        parts: Mapping[str, str],
        limit: int,
        background: bool,
        upload: Upload | None = None,
    ) -> Begun:
        """From now on `save_round` makes this rank's files of `parts` (see `saving.Save`); what was begun is forgotten.

        They are written below `folder` where it is a folder of this node too, else below `upload`, a folder in an object
        store, where there is one that this process can write to. `background`: rounds are copied, and written by a thread
        after the last one. `number`: above 0, another one each time, by which `save_written` knows them.
        """
        self.drop_save(self._save)
        save = Save(self.learner, parts, limit=limit, copied=background)
        place, refused = _place(folder, upload, f".rank-{self.rank}")
        self._writing = None
        if place is not None:
            self._writing = Writing(
                place,
                save.heads,
                background=background,
                check=upload.check if upload is not None else lambda: None,
                tell=partial(self._tell_written, number),
            )
        self._rounds, self._save, self._reading = save.rounds(), number, True
        return Begun(
            files=tuple(head.name for head in save.heads),
            heads=tuple(save.heads) if place is None else (),
            weight_map=save.weight_map if self.rank == 0 else {},
            weight_bytes=save.weight_bytes,
            uploads=isinstance(place, RemoteFolder),
            refused=refused,
        )

    def save_round(self) -> list[Piece] | None:
        """Writes or copies the next bytes, or returns them where this rank cannot write; None: these were all."""
        forget_store_pages()  # of the ones before
        found = next(self._rounds, None)
        self._reading = found is not None
        if self._writing is None:
            if found is None:
                self._tell_written(self._save, Written(0, {}))
            return found
        if found is None:
            self._rounds = iter(())  # it refers to what the optimizer has now
            self._writing.start()
            return None
        self._writing.add(found)
        return []

    def _tell_written(self, number: int, said: Written | RLTrainError) -> None:
        """What `save_written` would answer: a learner that updates does not."""
        if self._pulse is not None:
            self._pulse.tell(f"learner {self.rank}", (number, said))

    def save_written(self, number: int) -> Written:
        """How far the files are that this rank writes itself of what was begun as `number`.

        Raises CheckpointError when one cannot be written, and when that was dropped.
        """
        if number != self._save:
            raise CheckpointError(
                f"learner {self.rank}: its files of save {number} were given up, the last one begun is {self._save}"
            )
        return self._writing.look() if self._writing is not None else Written(0, {})

    def drop_save(self, number: int) -> None:
        """Nobody wants what was begun as `number` any more; a later one goes on."""
        if number != self._save:
            return
        if self._writing is not None:
            self._writing.close()
        self._rounds, self._writing, self._save, self._reading = iter(()), None, 0, False


def _others(spec: RunSpec) -> bool:
    """See `create_publisher`."""
    if spec.weight_sync.transport != "ipc":
        return False
    nodes = sum(node["Alive"] for node in ray.nodes())
    return not all_beside(spec.sampler.replicas, accelerated=bool(ray.get_gpu_ids()), nodes=nodes)


def _reached(folder: Path) -> bool:
    """Whether a folder that the driver has just made, under a name that nobody else has, is one of this node too."""
    return os.access(folder, os.W_OK | os.X_OK)


def _place(folder: Path, upload: Upload | None, probe: str) -> tuple[Path | RemoteFolder | None, str]:
    """Where this process writes its files, None: it cannot; and why not to `upload`, though it was to, or nothing.

    `probe`: a name in `upload` under which a file is written and deleted again. Raises RunFolderBusy: a later attempt has
    the run's folder.
    """
    if _reached(folder):
        return folder, ""
    if upload is None:
        return None, ""
    remote = RemoteFolder(upload.uri, stalled=_PROBE_SECONDS)

    def write() -> None:
        upload.check()
        remote.write(probe, b"")
        remote.delete(probe)

    try:
        remote.within(f"nothing can be written to {remote.uri}", write)
    except CheckpointError as error:
        return None, str(error)
    return RemoteFolder(upload.uri, stalled=_UPLOAD_SECONDS), ""


@contextmanager
def _opened(
    shared: Mapping[str, SharedFolder], saved: SavedLearners, part: str
) -> Iterator[TensorFile | None]:
    """The tensors of a part of `saved`, within the block; None where there is none."""
    if part not in saved.parts:
        yield None
        return
    with shared[part].opened() as folder, opened_tensors(folder, saved.parts[part]) as tensors:
        yield tensors
