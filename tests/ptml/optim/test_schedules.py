"""Schedules: their values at, before and past the horizon, in every dtype, and what they refuse."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from ptml.optim import (
    ConstantSchedule,
    CosineSchedule,
    LinearSchedule,
    Schedule,
    constant_schedule,
    cosine_schedule,
    linear_schedule,
    scalar_state,
)


def values(schedule, counts):
    return [float(schedule(count).eval()) for count in counts]


def test_the_cosine_reaches_its_end_at_the_horizon_and_holds_it():
    schedule = cosine_schedule(0.3, 10)
    np.testing.assert_allclose(values(schedule, [0, 5]), [0.3, 0.15], rtol=1e-15)
    assert values(schedule, [10, 11, 10**12]) == [0.0, 0.0, 0.0]


def test_the_cosine_is_half_a_cosine():
    expected = [0.1 + 0.4 * 0.5 * (1 + math.cos(math.pi * k / 7)) for k in range(8)]
    np.testing.assert_allclose(values(cosine_schedule(0.5, 7, 0.1), range(8)), expected, rtol=1e-14)


def test_both_ends_are_exact():
    for schedule in (cosine_schedule(0.3, 7, 0.1), linear_schedule(0.3, 7, 0.1)):
        assert values(schedule, [0, 7, 8]) == [0.3, 0.1, 0.1]


def test_the_third_argument_by_position_is_an_endpoint_and_may_not_be_above_the_start():
    assert values(cosine_schedule(3e-4, 10, 3e-5), [10]) == [3e-5]
    with pytest.raises(ValueError, match=r"optax's third, alpha, is a fraction") as error:
        cosine_schedule(3e-4, 10_000, 0.1)
    assert "cosine_schedule(0.0003, 10000, final_learning_rate=3e-05) for what alpha=0.1 means" in str(
        error.value
    )
    assert "final_learning_rate=0.1 by keyword for a rise" in str(error.value)


def test_a_rise_is_said_by_keyword():
    rise = cosine_schedule(0.0, 4, final_learning_rate=1.0)
    np.testing.assert_allclose(values(rise, [0, 2, 4]), [0.0, 0.5, 1.0], rtol=1e-15)
    assert repr(rise) == "CosineSchedule(0.0, 4, final_learning_rate=1.0)"
    assert eval(repr(rise), {"CosineSchedule": CosineSchedule}) == rise
    assert pickle.loads(pickle.dumps(rise)) == rise


def test_a_line_moves_by_equal_amounts_in_either_direction():
    np.testing.assert_allclose(values(linear_schedule(1.0, 4), range(6)), [1, 0.75, 0.5, 0.25, 0, 0])
    np.testing.assert_allclose(values(linear_schedule(0.0, 4, 1.0), range(6)), [0, 0.25, 0.5, 0.75, 1, 1])


def test_a_constant_is_constant():
    assert values(constant_schedule(0.1), [0, 1, 10**15]) == [0.1, 0.1, 0.1]
    assert constant_schedule(0.1)(np.arange(3)).eval().tolist() == [0.1, 0.1, 0.1]


@pytest.mark.parametrize(
    "schedule", [constant_schedule(0.1), cosine_schedule(0.1, 5), linear_schedule(0.1, 5)]
)
def test_a_schedule_gives_a_scalar_of_floatx_for_any_kind_of_count(schedule):
    for floatX in ("float32", "float64"):
        with pytensor.config.change_flags(floatX=floatX):
            for count in (3, np.int32(3), pt.lscalar("count"), pt.iscalar("count")):
                assert schedule(count).type.dtype == floatX
                assert schedule(count).ndim == 0


def test_counts_that_float32_cannot_tell_apart_are_right():
    end = 2**25
    with pytensor.config.change_flags(floatX="float32"):
        assert values(linear_schedule(1.0, end), [end, end + 1, 2**40]) == [0.0, 0.0, 0.0]
        assert values(cosine_schedule(0.1, 100), [2**24 + 1, 2**40]) == [0.0, 0.0]
        np.testing.assert_allclose(values(linear_schedule(1.0, 4 * end), [end + 1]), [0.75], rtol=1e-6)


def test_a_horizon_may_be_written_in_terms_of_the_data():
    X = pt.matrix("X")
    rate = cosine_schedule(0.3, 10 * (100 // X.shape[0]))(20)
    np.testing.assert_allclose(rate.eval({X: np.zeros((25, 1))}), 0.15, rtol=1e-14)
    with pytest.raises(ValueError, match=r"CosineSchedule: total_steps must be a whole number of at least 1"):
        rate.eval({X: np.zeros((200, 1))})


def test_rates_may_be_symbolic():
    peak = pt.dscalar("peak")
    np.testing.assert_allclose(linear_schedule(peak, 4)(1).eval({peak: 2.0}), 1.5)
    assert "rate" in repr(constant_schedule(scalar_state("rate")))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: constant_schedule(-0.1),
            r"ConstantSchedule: learning_rate must be a finite number of 0 or more",
        ),
        (lambda: cosine_schedule(math.nan, 10), r"learning_rate must be .*; got nan"),
        (
            lambda: cosine_schedule(0.1, 0),
            r"CosineSchedule: total_steps must be a whole number of at least 1; got 0",
        ),
        (lambda: cosine_schedule(0.1, -5), r"total_steps must be a whole number of at least 1; got -5"),
        (lambda: linear_schedule(0.1, 2.5), r"total_steps must be a whole number of at least 1; got 2\.5"),
        (lambda: linear_schedule(0.1, math.inf), r"total_steps must be .*; got inf"),
        (lambda: linear_schedule(0.1, 10, -1.0), r"final_learning_rate must be .*; got -1\.0"),
    ],
)
def test_an_impossible_hyperparameter_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cosine_schedule(0.1, "10"), r"total_steps must be a whole number of at least 1; got '10'"),
        (lambda: cosine_schedule(0.1, pt.dscalar("n")), r"or a symbolic one; got a tensor of type .*float64"),
        (lambda: cosine_schedule(constant_schedule(0.1), 10), r"learning_rate must be a finite number"),
        (
            lambda: constant_schedule(0.1)(1.5),
            r"ConstantSchedule\(0\.1\) is read at a whole number of steps; got 1\.5",
        ),
        (
            lambda: constant_schedule(0.1)(pt.dscalar("k")),
            r"is read at a whole number of steps; got .*float64",
        ),
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_a_horizon_may_be_a_whole_float():
    assert values(linear_schedule(1.0, 1e1), [5]) == [0.5]


def test_a_schedule_of_the_users_is_a_value():
    class Halving(Schedule):
        every: int

        def at(self, count):
            return 0.5 ** (count // self.every)

    assert values(Halving(every=2), [0, 1, 2, 5]) == [1.0, 1.0, 0.5, 0.25]
    assert repr(Halving(every=2)) == "Halving(every=2)"


def test_schedules_are_values():
    assert cosine_schedule(0.1, 10) == CosineSchedule(learning_rate=0.1, total_steps=10)
    assert linear_schedule(0.1, 10) == LinearSchedule(0.1, 10, 0.0)
    assert constant_schedule(0.1) == ConstantSchedule(0.1)
    assert cosine_schedule(0.1, 10) != linear_schedule(0.1, 10)
    assert len({cosine_schedule(0.1, 10), cosine_schedule(0.1, 10)}) == 1
