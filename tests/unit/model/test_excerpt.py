"""Work as a learner's or a sampler's that takes a moment, as a worker repeats it."""

from __future__ import annotations

from dataclasses import replace

from rl_trainer.flow.worker import Worker
from rl_trainer.model.config import DecoderConfig
from rl_trainer.model.decoder import Decoder
from rl_trainer.model.excerpt import MOST_OPERATIONS, MOST_PARAMETERS, Excerpt

CONFIG = DecoderConfig("llama", 32, 16, 2, 2, 1, 8, 32, 64)
SMALL = Excerpt(CONFIG, 3, 5, True, 1)


def test_operations_are_those_of_the_models_parameters() -> None:
    norms = CONFIG.hidden_size * (2 * CONFIG.layers + 1)
    parameters = sum(one.numel() for one in Decoder(replace(CONFIG, tied_embeddings=True)).parameters())
    assert SMALL.operations == 6 * (parameters - norms) * 15
    assert replace(SMALL, learns=False).operations == SMALL.operations / 3
    assert SMALL.short() == SMALL


def test_of_a_large_model_less_is_computed_in_the_same_widths() -> None:
    large = replace(CONFIG, vocab_size=150_000, hidden_size=2048, heads=16, head_dim=128, layers=32)
    found = Excerpt(replace(large, intermediate_size=4096), 64, 512, True, 1).short()
    assert found is not None
    assert found.operations <= MOST_OPERATIONS or found.rows == 1
    assert (found.config.layers, found.config.hidden_size, found.length) == (1, 2048, 512)
    assert found.rows < 64


def test_a_worker_does_it_again_and_again() -> None:
    """At least twice however long it takes, one after the other; a pass that learns, and one that decodes."""
    for piece in (SMALL, Excerpt(CONFIG, 4, 1, False, 1)):
        found = Worker("learner 0").repeat(piece, 0.0)
        assert len(found) == 2
        times = [time for one in found for time in one]
        assert times == sorted(times)


def test_the_first_piece_is_cold_and_is_not_told() -> None:
    done: list[int] = []
    assert len(Worker("sampler 0").repeat(lambda: lambda: done.append(1), 0.0)) == 2
    assert len(done) == 3


def test_no_process_makes_more_parameters_than_it_may_beside_its_own_model() -> None:
    wide = replace(CONFIG, vocab_size=150_000, hidden_size=1024, heads=16, head_dim=64, layers=24)
    found = Excerpt(replace(wide, intermediate_size=4096), 1, 1, False, 1).short()
    assert found is not None
    assert 1 <= found.config.layers < 24
    assert found.parameters <= MOST_PARAMETERS
    widest = replace(wide, hidden_size=8192, heads=64, head_dim=128, intermediate_size=28_672)
    assert Excerpt(widest, 1, 1, False, 1).short() is None
