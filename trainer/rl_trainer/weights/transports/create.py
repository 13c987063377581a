"""The publisher and the receiver of a run, by the name of its way."""

from __future__ import annotations

from collections.abc import Callable

from rl_api.roles import Transport
from rl_trainer.weights.transports.adapter import AdapterPublisher, AdapterReceiver
from rl_trainer.weights.transports.base import Publisher, Receiver, Store
from rl_trainer.weights.transports.collective import CollectiveReceiver
from rl_trainer.weights.transports.delta import DeltaPublisher, DeltaReceiver
from rl_trainer.weights.transports.object_store import StorePublisher, StoreReceiver


def create_publisher(transport: Transport, store: Store, *, rank: int) -> Publisher:
    """The side of learner `rank`."""
    kinds: dict[Transport, Callable[[Store, int], Publisher]] = {
        "delta": DeltaPublisher,
        "adapter": AdapterPublisher,
    }
    return kinds.get(transport, StorePublisher)(store, rank)


def create_receiver(transport: Transport, store: Store, *, place: str) -> Receiver:
    """A sampler's side; `place`: who it is and where, for errors."""
    kinds: dict[Transport, Callable[[Store, str], Receiver]] = {
        "objectStore": StoreReceiver,
        "delta": DeltaReceiver,
        "adapter": AdapterReceiver,
    }
    return kinds.get(transport, CollectiveReceiver)(store, place)
