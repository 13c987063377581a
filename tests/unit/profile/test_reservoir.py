from rl_trainer.profile.reservoir import Reservoir


def test_all_are_kept_until_it_is_full_and_then_late_ones_are_more_likely():
    reservoir = Reservoir(100, seed=3)
    reservoir.add(range(100))
    assert reservoir.kept == list(range(100))
    reservoir.add(range(100, 1000))
    assert len(reservoir.kept) == 100
    # Of the newest 100 numbers about 63 are there, of those 900 earlier about none.
    assert 50 <= sum(one >= 900 for one in reservoir.kept) <= 76
    assert sum(one < 100 for one in reservoir.kept) <= 2


def test_the_draw_is_that_of_its_seed():
    draws = []
    for seed in (1, 1, 2):
        reservoir = Reservoir(10, seed)
        reservoir.add(range(1000))
        draws.append(reservoir.kept)
    assert draws[0] == draws[1] != draws[2]
