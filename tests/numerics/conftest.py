"""Only where the peers are installed: `make test-numerics` runs this folder in an environment of its own."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

HAS_PEERS = all(find_spec(peer) is not None for peer in ("openrlhf", "trl", "verl"))
collect_ignore_glob = [] if HAS_PEERS else ["*.py"]

if HAS_PEERS:
    from numerics_batches import SHAPES, Batch, random_batch

    @pytest.fixture(params=[(seed, *shape) for seed, shape in enumerate(SHAPES)], ids=str)
    def batch(request: pytest.FixtureRequest) -> Batch:
        """Random log-probs, advantages and masks with holes and padding, in fp64."""
        return random_batch(*request.param)
