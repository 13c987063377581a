"""The publisher and the receiver of a run, by the name of its way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from rl_api.roles import Transport
from rl_trainer.weights.transports.adapter import AdapterPublisher, AdapterReceiver
from rl_trainer.weights.transports.base import Lends, Publisher, Receiver, Store, never
from rl_trainer.weights.transports.collective import CollectiveReceiver
from rl_trainer.weights.transports.delta import DeltaPublisher, DeltaReceiver
from rl_trainer.weights.transports.ipc import IpcPublisher, IpcReceiver
from rl_trainer.weights.transports.object_store import StorePublisher, StoreReceiver


def create_publisher(transport: Transport, store: Store, *, rank: int, others: bool = False) -> Publisher:
    """The side of learner `rank`; `others`: whether there are samplers that cannot map the memory of the first one's device
    (`choose.all_beside`)."""
    kinds: dict[Transport, Callable[[Store, int], Publisher]] = {
        "delta": DeltaPublisher,
        "adapter": AdapterPublisher,
        "ipc": partial(IpcPublisher, others=others),
    }
    return kinds.get(transport, StorePublisher)(store, rank)


def create_receiver(
    transport: Transport, store: Store, *, place: str, lends: Lends = never, device: str = "cpu"
) -> Receiver:
    """A sampler's side; `place`: who it is and where, for errors; `lends`: of the store, where whole versions come from;
    `device`: of its engine."""
    kinds: dict[Transport, Callable[[Store, str], Receiver]] = {
        "objectStore": partial(StoreReceiver, lends=lends),
        "auto": partial(CollectiveReceiver, lends=lends),
        "delta": DeltaReceiver,
        "adapter": AdapterReceiver,
        "ipc": partial(IpcReceiver, lends=lends, device=torch.device(device)),
    }
    return kinds.get(transport, CollectiveReceiver)(store, place)
