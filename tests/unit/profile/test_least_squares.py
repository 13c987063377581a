import numpy as np
import pytest

from rl_trainer.profile.least_squares import LeastSquares


def observations(count, coefficients, noise, seed=0):
    random = np.random.default_rng(seed)
    for _ in range(count):
        active = int(random.integers(1, 65))
        x = (1.0, float(active), float(active * random.integers(20, 900)))
        yield (*x, float(np.dot(coefficients, x)) * (1 + noise * random.standard_normal()))


@pytest.mark.parametrize(
    "coefficients", [(4e-3, 5e-5, 2e-7), (4e-3, 0.0, 2e-7), (0.0, 1e-4, 0.0), (2e-3, 0.0, 0.0)]
)
def test_coefficients_of_a_decode_step_are_found_through_noise(coefficients):
    fit = LeastSquares(3)
    for one in observations(4000, coefficients, 0.02):
        fit.add(*one)
    found = fit.fit()
    assert all(one >= 0 for one in found)
    for x in ((1.0, 1.0, 50.0), (1.0, 16.0, 8000.0), (1.0, 64.0, 30_000.0)):
        assert np.dot(found, x) == pytest.approx(np.dot(coefficients, x), rel=0.03)


def test_without_noise_they_are_exact_and_the_same_from_parts():
    whole, joined = LeastSquares(3), LeastSquares(3)
    parts = [LeastSquares(3), LeastSquares(3)]
    for number, one in enumerate(observations(200, (3e-3, 4e-5, 1e-7), 0.0)):
        whole.add(*one)
        parts[number % 2].add(*one)
    for part in parts:
        joined.merge(part.drain())
        assert part.count == 0
        assert part.fit() is None
    assert joined.count == whole.count == 200
    assert joined.fit() == pytest.approx(whole.fit())
    assert whole.fit() == pytest.approx((3e-3, 4e-5, 1e-7), rel=1e-4)


def test_of_features_that_say_the_same_the_first_is_taken():
    fit = LeastSquares(3)
    for _ in range(10):
        fit.add(1.0, 8.0, 0.0, 0.5)
    assert fit.fit() == pytest.approx((0.5, 0.0, 0.0))


def test_a_feature_varies_where_a_fit_can_tell_it_from_the_constant():
    fit = LeastSquares(3)
    assert not fit.varies(1)
    for active, cached in ((32, 0), (32, 500), (31, 900)):
        fit.add(1.0, float(active), float(cached), 0.5)
    assert fit.mean(1) == pytest.approx(95 / 3)
    assert (fit.varies(1), fit.varies(2)) == (False, True)
    fit.add(1.0, 8.0, 100.0, 0.25)
    assert fit.varies(1)


def test_no_coefficient_is_negative_where_the_best_line_falls():
    fit = LeastSquares(2)
    for x, y in ((1.0, 3.0), (2.0, 2.0), (3.0, 1.0)):
        fit.add(1.0, x, y)
    assert fit.fit() == pytest.approx((2.0, 0.0))


def test_what_was_long_ago_weighs_less():
    fit = LeastSquares(1)
    fit.add(1.0, 10.0)
    fit.forget(0.5)
    fit.add(1.0, 4.0)
    assert fit.count == 1.5
    assert fit.fit() == pytest.approx((6.0,))
