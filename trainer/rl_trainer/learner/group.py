"""All learners as the driver sees them: each step is planned here, and every call has a deadline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import ray

from rl_api import RunSpec
from rl_api.errors import RLTrainError
from rl_api.handing_over import keeps_devices
from rl_trainer.algorithms.denominators import LossDenominators
from rl_trainer.algorithms.value_targets import Advantage, ValueTargets, value_metrics
from rl_trainer.checkpoint.shards import SHARD_BYTES
from rl_trainer.checkpoint.shards import deal as owners_of
from rl_trainer.checkpoint.state import LearnerState, SavedFiles, SavedLearners
from rl_trainer.checkpoint.tensor_file import Digests, ShardWriter
from rl_trainer.flow.named_class import named_class
from rl_trainer.flow.pulse import Watch
from rl_trainer.flow.store_pages import forget_store_pages
from rl_trainer.flow.turns import Turn
from rl_trainer.flow.worker_group import WorkerGroup
from rl_trainer.learner.packing import split_groups
from rl_trainer.learner.plan import Member, plan_groups
from rl_trainer.learner.results import Begun, TokenEstimates, UpdateResult, Written
from rl_trainer.learner.share import Share, deal
from rl_trainer.learner.writing import ROUND_TIMEOUT, LearnersWriting
from rl_trainer.model.shared_folder import READ_RATE, SharedFolder
from rl_trainer.observe.timeline import Span
from rl_trainer.placement.groups import Reservation
from rl_trainer.storage.ownership import Upload
from rl_trainer.trajectory import Group, Trajectory
from rl_trainer.weights.transports.invitation import Invitation
from rl_trainer.weights.transports.publication import Publication

_P = TypeVar("_P")

# To load a model, besides what its bytes take.
START_TIMEOUT = 300.0
# Bytes/s at which weights are gathered, checked and put into the object store at least.
PUBLISH_RATE = 200e6


@dataclass
class Learners:
    """All ranks, as the driver sees them: every call goes to all and has a deadline."""

    actors: list[Any]
    spec: RunSpec
    timeout: float = 3600.0
    size: int = 0  # bytes of the model folder
    watch: Watch | None = None
    turn: Turn | None = None  # where samplers share their devices
    _saves: int = 0  # begun so far

    @classmethod
    def launch(
        cls, spec: RunSpec, reservation: Reservation, search: Path | None = None, watch: Watch | None = None
    ) -> Learners:
        """Starts the processes; returns at once. `search`: folder in which the user's modules are looked for first; `watch`:
        knows who stands still."""
        ranks, pulse = spec.learner.ranks, None if watch is None else watch.pulse
        workers = WorkerGroup.launch(
            "learner",
            named_class("rl_trainer.learner.actor", "LearnerActor"),
            {rank: (rank, ranks, spec, search, pulse) for rank in range(ranks)},
            lambda rank: reservation.options(f"learner {rank}"),
            watch,
        )
        return cls([*workers.actors.values()], spec, watch=watch)

    @property
    def workers(self) -> WorkerGroup:
        """All ranks."""
        return WorkerGroup("learner", self.actors, self.watch)

    def start(self, folder: SharedFolder, beside: Collection[str] = ()) -> None:
        """Loads the model on every rank and joins them. `beside`: others that open the folder now; on one node whoever comes
        first makes the copy for all, and must not stand still."""
        self.size = folder.size
        timeout = START_TIMEOUT + folder.size / READ_RATE
        address = None
        if len(self.actors) > 1:
            address = self._first("rendezvous", "starting", START_TIMEOUT)
        with self._turn("loading the model") as phase:
            self.workers.all("start", folder, address).wait(phase, timeout, beside=beside)

    def start_reinforcement(self) -> None:
        """See `LearnerActor.start_reinforcement`."""
        with self._turn("starting reinforcement learning") as phase:
            self._all("start_reinforcement", [()] * len(self.actors), phase)

    def restore(
        self,
        saved: SavedLearners,
        shared: Mapping[str, SharedFolder],
        initial: SharedFolder | None,
        generators: Sequence[bytes | None],
    ) -> None:
        """See `LearnerActor.restore`; `generators` by rank."""
        arguments = [(saved, shared, initial, data) for data in generators]
        size = sum(one.size for one in (*shared.values(), initial) if one is not None)
        with self._turn("restoring the optimizer") as phase:
            self._all("restore", arguments, phase, self.timeout + size / READ_RATE)

    def random_states(self) -> list[bytes]:
        """See `LearnerActor.random_state`; by rank."""
        return self._all("random_state", [()] * len(self.actors), "reading random states for a checkpoint")

    def supervise(self, samples: Sequence[Trajectory], rate: float) -> float:
        """One supervised step on `samples`, dealt out over the ranks."""
        denominators = LossDenominators.from_lengths([int(s.mask[1:].sum()) for s in samples])
        parts = [list(samples[part :: self._parts]) for part in range(self._parts)]
        arguments = [(part, denominators, rate) for part in self._each_to_its_ranks(parts)]
        with self._turn("the warm start") as phase:
            return float(self._all("supervise", arguments, phase)[0])

    def update(
        self,
        groups: Sequence[Group],
        advantages: Sequence[Advantage],
        step: int,
        version: int | None = None,
        meanwhile: Callable[[], bool] = lambda: False,
    ) -> tuple[UpdateResult, Publication | None, list[Span]]:
        """One training step on all members of `groups`; `advantages` in their order.

        The new weights come along as `version`, unless that is None. `meanwhile`: see `Handle.wait`.
        """
        critic = self.spec.algorithm.value_model
        train_policy = critic is None or step >= critic.warmup_steps
        plan = plan_groups(self.spec, groups, advantages, ranks=self._parts, step=step)
        denominators = [part.denominators for part in plan]
        chosen = [[part.ranks[rank] for part in plan] for rank in range(self._parts)]
        arguments = [
            (share, denominators, self._trained(step), version, train_policy)
            for share in self._shares(groups, chosen)
        ]
        with self._turn("training", meanwhile=meanwhile) as phase:
            results = self._all("update", arguments, phase, meanwhile=meanwhile)
        update, published, _ = results[0]
        targets = [advantage for advantage in advantages if isinstance(advantage, ValueTargets)]
        update = replace(update, metrics=update.metrics | value_metrics(targets))
        return update, published, [span for _, _, spans in results for span in spans]

    def accumulate(
        self,
        groups: Sequence[Group],
        advantages: Sequence[Advantage],
        step: int,
        meanwhile: Callable[[], bool] = lambda: False,
    ) -> list[Span]:
        """Begins, or goes on with, a training step with all members of `groups`, a part of its batch; `apply` ends it.

        For algorithms that take one optimizer step for each batch, without a critic (`rl_api.parts`).
        """
        (plan,) = plan_groups(self.spec, groups, advantages, ranks=self._parts, step=step)
        shares = self._shares(groups, [[part] for part in plan.ranks])
        arguments = [(share, plan.denominators, self._trained(step)) for share in shares]
        keep = keeps_devices(self.spec)
        with self._turn("training", keep, meanwhile) as phase:
            found = self._all("accumulate", arguments, phase, meanwhile=meanwhile)
        return [span for spans in found for span in spans]

    def apply(
        self, version: int | None = None, meanwhile: Callable[[], bool] = lambda: False
    ) -> tuple[UpdateResult, Publication | None, list[Span]]:
        """Ends the training step that was accumulated; as `update`."""
        with self._turn("training", meanwhile=meanwhile) as phase:
            results = self._all("apply", [(version,)] * len(self.actors), phase, meanwhile=meanwhile)
        update, published, _ = results[0]
        return update, published, [span for _, _, spans in results for span in spans]

    def _trained(self, step: int) -> int:
        """Version of the weights that step number `step` trains."""
        return step // self.spec.weight_sync.every_steps

    def token_estimates(self, groups: Sequence[Group]) -> tuple[TokenEstimates, list[Span]]:
        """See `Learner.token_estimates`; of every member of `groups`, in order."""
        members = [
            Member(group, member, 0.0)
            for group, taken in enumerate(groups)
            for member in range(len(taken.lengths))
        ]
        lengths = [length for taken in groups for length in taken.total_lengths]
        parts = split_groups(lengths, [member.group for member in members], self._parts)
        shares = self._shares(groups, [[[members[index] for index in part]] for part in parts])
        # The update follows at once: nobody else has the devices for that moment.
        with self._turn("computing KL and values", keep=True) as phase:
            results = self._all("token_estimates", [(share,) for share in shares], phase)
        firsts = [found for found, _ in results[:: self.spec.learner.context_size]]
        whole = TokenEstimates(
            _in_order(parts, [found.kl for found in firsts]),
            _in_order(parts, [found.values for found in firsts]),
        )
        return whole, [span for _, spans in results for span in spans]

    def publish(self, version: int) -> tuple[Publication, list[Span]]:
        """The weights as they are now, as `version`."""
        field, size = self.spec.weight_sync.timeout.seconds, self.size
        phase = f"publishing weights (weightSync.timeout is {field:.0f} s, the rest is for the model's {size / 1e9:.1f} GB)"
        timeout = field + size / PUBLISH_RATE
        with self._turn("publishing weights"):
            results = self._all("publish", [(version,)] * len(self.actors), phase, timeout)
        return results[0][0], [span for _, spans in results for span in spans]

    def offload(self) -> int:
        """See `LearnerActor.offload`, of the ranks whose devices samplers share, or of all where none do; their bytes."""
        return sum(self._sharing.offload().wait("moving tensors out", self.timeout))

    def onload(self) -> int:
        """See `LearnerActor.onload`, of the ranks as with `offload`; their bytes."""
        return sum(self._sharing.onload().wait("moving tensors in", self.timeout))

    @property
    def _sharing(self) -> WorkerGroup:
        return WorkerGroup("learner", self.actors[: self.spec.shared_samplers or None], self.watch)

    def device_memory(self) -> int:
        """See `LearnerActor.device_memory`; of rank 0, as all are alike. They need not have loaded anything."""
        size: int = self._first("device_memory", "asking how large a device is", START_TIMEOUT)
        return size

    def meeting_point(self) -> tuple[str, int]:
        """See `LearnerActor.meeting_point`."""
        address: tuple[str, int] = self._first("meeting_point", "opening a meeting point", START_TIMEOUT)
        return address

    def broadcast(self, published: Publication, invitation: Invitation) -> None:
        """See `LearnerActor.broadcast`; nobody waits for it."""
        self.workers.one(0, "broadcast", published, invitation)

    def check_stored(self, uri: str, files: Digests) -> tuple[str, str]:
        """See `look_at`; every rank looks at a part of the files, before it has loaded anything."""
        owners = owners_of({name: size for name, (size, _) in files.items()}, len(self.actors))
        parts = [
            (uri, {name: files[name] for name in files if owners[name] == rank})
            for rank in range(len(self.actors))
        ]
        timeout = START_TIMEOUT + sum(size for size, _ in files.values()) / READ_RATE
        found = self._all("check_stored", parts, "checking the checkpoint", timeout)
        unreachable, damaged = zip(*found, strict=True)
        return next(filter(None, unreachable), ""), next(filter(None, damaged), "")

    def reach(self, folder: Path) -> bool:
        """Whether all of them see a folder that was just made; see `LearnerActor.reaches`."""
        return all(self._all("reaches", [(folder,)] * len(self.actors), "looking for the checkpoint folder"))

    def broadcast_failure(self) -> str | None:
        """See `LearnerActor.broadcast_failure`."""
        found: str | None = self._first("broadcast_failure", "looking at a broadcast", START_TIMEOUT)
        return found

    def state(self) -> LearnerState:
        """What a checkpoint holds of them; the tensors are written as they are then."""
        none = [()] * len(self.actors)
        steps, contents, on_gpus = self._all("saved", none, "reading what a checkpoint holds")[0]
        return LearnerState(steps, contents, on_gpus, self.write)

    def write(
        self,
        folder: Path,
        parts: Mapping[str, str],
        *,
        limit: int = SHARD_BYTES,
        background: bool = False,
        upload: Upload | None = None,
    ) -> LearnersWriting:
        """Every rank writes its part of the tensors below `folder`, in rounds, each by a deadline.

        A rank whose node has another folder writes to `upload`; what it cannot write there it sends: here one piece of it
        is held at a time.

        Args:
            folder: empty, of a name that is used once.
            parts: see `saving.Save`.
            limit: bytes in one file of weights at most.
            background: on return all is copied, and learners may go on while they write it; else it is written then.
            upload: a folder in an object store in which nothing counts yet; None: there is none.

        Raises as `Handle.wait` does; CheckpointError: a file cannot be written.
        """
        self._saves += 1
        number, phase, ranks = self._saves, f"writing {', '.join(parts)}", len(self.actors)
        arguments = [(number, folder, parts, limit, background, upload)] * ranks
        with self._turn(phase):
            try:
                begun: list[Begun] = self._all("begin_save", arguments, phase, ROUND_TIMEOUT)
                with ShardWriter(folder, [head for one in begun for head in one.heads]) as writer:
                    while self._write_round(writer, phase):
                        pass
                    sent = writer.finish()
            except BaseException:
                self._drop_save(number)  # and then they may leave their devices
                raise
        looks = partial(self._all, "save_written", [(number,)] * ranks, phase, ROUND_TIMEOUT)
        uploaded = frozenset(name for one in begun if one.uploads for name in one.files)
        files = SavedFiles(sent, begun[0].weight_map, begun[0].weight_bytes, uploaded)
        names = {name for one in begun for name in one.files}
        refused = next((one.refused for one in begun if one.refused), "")
        told = partial(self._told, number) if background and self.watch is not None else None
        return LearnersWriting(files, names, looks, partial(self._drop_save, number), refused, told)

    def _told(self, number: int) -> list[Written] | None:
        """What all ranks have told of their files, without being asked, once they have; None: some have not.

        Raises what one of them failed with.
        """
        assert self.watch is not None
        said = self.watch.told()
        words = [said.get(f"learner {rank}") for rank in range(len(self.actors))]
        found: list[Written] = []
        for word in words:
            if word is None or word[0] != number:
                continue
            if isinstance(word[1], RLTrainError):
                raise word[1]
            found.append(word[1])
        return found if len(found) == len(words) else None

    def _write_round(self, writer: ShardWriter, phase: str) -> bool:
        """One round of all ranks; whether there may be another."""
        rounds = self._all("save_round", [()] * len(self.actors), phase, ROUND_TIMEOUT)
        for name, data in (piece for one in rounds for piece in one or ()):
            writer.write(name, data)
        going = any(one is not None for one in rounds)
        del rounds
        forget_store_pages()
        return going

    def _drop_save(self, number: int) -> None:
        self.workers.all("drop_save", number)  # nobody waits: after an error one of them may be gone

    def _turn(
        self, phase: str, keep: bool = False, meanwhile: Callable[[], bool] = lambda: False
    ) -> AbstractContextManager[str]:
        """Around all calls that compute, or move what is on the devices; see `Turn.taken`. Gives `phase`."""
        return nullcontext(phase) if self.turn is None else self.turn.taken(phase, keep, meanwhile)

    @property
    def _parts(self) -> int:
        """Of a batch: ranks that share sequences have one together."""
        return self.spec.learner.data_ranks

    def _each_to_its_ranks(self, parts: Sequence[_P]) -> list[_P]:
        """By rank, the part of a batch that is its own."""
        return [part for part in parts for _ in range(self.spec.learner.context_size)]

    def _shares(self, groups: Sequence[Group], chosen: Sequence[Sequence[Sequence[Member]]]) -> list[Share]:
        """`share.deal`, by rank; what several ranks need is in the object store once."""
        payloads = [group.payload for group in groups]
        origins = [(group.group_id, group.node) for group in groups]
        return deal(payloads, self._each_to_its_ranks(chosen), put=ray.put, origins=origins)

    def _first(self, method: str, phase: str, timeout: float | None = None) -> Any:
        """The answer of rank 0, which alone is asked."""
        return self.workers.one(0, method).wait(phase, timeout or self.timeout)[0]

    def _all(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        phase: str,
        timeout: float | None = None,
        meanwhile: Callable[[], bool] = lambda: False,
    ) -> list[Any]:
        return self.workers.each(method, arguments).wait(phase, timeout or self.timeout, meanwhile)


def _in_order(
    parts: Sequence[Sequence[int]], found: Sequence[Sequence[npt.NDArray[np.float64]] | None]
) -> list[npt.NDArray[np.float64]] | None:
    """Every rank's arrays at the positions `parts` of the whole; None where the ranks have none."""
    whole: dict[int, npt.NDArray[np.float64]] = {}
    for part, arrays in zip(parts, found, strict=True):
        if arrays is None:
            return None
        whole.update(zip(part, arrays, strict=True))
    return [whole[index] for index in range(len(whole))]
