"""A buffer in the hands of a test: its samplers, its groups and one step of training."""

from trajectories import scored

from rl_trainer.buffer.groups import BufferConfig
from rl_trainer.buffer.state import BufferState


def make(samplers=1, **config):
    """A buffer of 2 groups a step and room for 8, whose samplers have registered."""
    state = BufferState(BufferConfig(**{"groups_per_step": 2, "capacity": 8, "samplers": samplers, **config}))
    for sampler in range(samplers):
        state.register(sampler)
    return state


def group(group_id, version=0, payload=b"", **fields):
    """A group of two answers, one of them right."""
    return scored(group_id, [1.0, 0.0], [3, 4], version, payload, **fields)


def ids(tickets):
    """Of tickets, their groups."""
    return [ticket.group_id for ticket in tickets]


def batch_ids(state):
    """The groups of the next batch."""
    return [group.group_id for group in state.take()]


def run_step(state, sampler=0):
    """One step of training, from acquiring to committing."""
    for ticket in state.acquire(sampler, 100):
        state.put(sampler, group(ticket.group_id, ticket.version))
    state.take()
    return state.commit()


def flat(group_id, version=0):
    """A group whose rewards are all equal."""
    return scored(group_id, [1.0, 1.0], [3, 4], version)
