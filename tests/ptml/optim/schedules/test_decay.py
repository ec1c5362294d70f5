"""Schedules from one rate to another: before, at and past the horizon, in every dtype; what they refuse."""

from __future__ import annotations

import math
import pickle

import attrs
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import ptml.optim
from ptml.optim import (
    ConstantSchedule,
    CosineSchedule,
    InverseSqrtSchedule,
    LinearSchedule,
    constant_schedule,
    cosine_schedule,
    exponential_schedule,
    linear_schedule,
    polynomial_schedule,
    scalar_state,
    step_decay,
)


def values(schedule, counts):
    return schedule.values(list(counts)).tolist()


def test_the_cosine_reaches_its_end_at_the_horizon_and_holds_it():
    schedule = cosine_schedule(0.3, 10)
    np.testing.assert_allclose(values(schedule, [0, 5]), [0.3, 0.15], rtol=1e-15)
    assert values(schedule, [10, 11, 10**12]) == [0.0, 0.0, 0.0]


def test_the_cosine_is_half_a_cosine():
    expected = [0.1 + 0.4 * 0.5 * (1 + math.cos(math.pi * k / 7)) for k in range(8)]
    np.testing.assert_allclose(values(cosine_schedule(0.5, 7, 0.1), range(8)), expected, rtol=1e-14)


@pytest.mark.parametrize("floatX", ["float32", "float64"])
@pytest.mark.parametrize(
    "schedule",
    [
        cosine_schedule(0.3, 7, 0.1),
        linear_schedule(0.3, 7, 0.1),
        exponential_schedule(0.3, 7, 0.1),
        polynomial_schedule(0.3, 7, 0.1, power=1.7),
        step_decay(0.3, decay_every=7, min_learning_rate=0.1),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
def test_both_ends_are_exact(schedule, floatX):
    with pytensor.config.change_flags(floatX=floatX):
        ends = np.array([0.3, 0.1, 0.1, 0.1, 0.1, 0.1], floatX)
        rates = schedule.values([0, 7, 8, 2**24 + 1, 2**31, 10**12])
    assert rates.dtype == floatX
    assert rates.tolist() == ends.tolist()


def test_an_exponential_multiplies_by_one_factor():
    rates = exponential_schedule(1.0, 4, 1e-4).values(range(6))
    np.testing.assert_allclose(rates, [1, 1e-1, 1e-2, 1e-3, 1e-4, 1e-4], rtol=1e-13)
    rise = exponential_schedule(1e-4, 4, 1.0).values(range(6))
    np.testing.assert_allclose(rise, [1e-4, 1e-3, 1e-2, 1e-1, 1, 1], rtol=1e-13)


def test_a_polynomial_is_a_power_of_what_is_left():
    rates = polynomial_schedule(0.5, 8, 0.1, power=2.5).values(range(10))
    left = 1 - np.minimum(np.arange(10), 8) / 8
    np.testing.assert_allclose(rates, 0.1 + 0.4 * left**2.5, rtol=1e-14)


def test_step_decay_goes_down_a_stair_to_its_floor():
    rates = step_decay(1.0, decay_every=3, decay_factor=0.5, min_learning_rate=0.2).values(range(11))
    assert rates.tolist() == [1.0] * 3 + [0.5] * 3 + [0.25] * 3 + [0.2] * 2
    assert step_decay(1.0, decay_every=3, decay_factor=1.0).values([10**12]).tolist() == [1.0]


def test_a_start_is_held_until_the_transition_begins():
    def delayed(begin):
        return [
            linear_schedule(0.3, 5, 0.1, begin),
            exponential_schedule(0.3, 5, 0.1, begin),
            polynomial_schedule(0.3, 5, 0.1, begin, 2.0),
            step_decay(0.3, decay_every=2, transition_begin=begin),
        ]

    for now, later in zip(delayed(0), delayed(4), strict=True):
        assert later.values(range(5)).tolist() == [0.3] * 5
        assert later.values(range(4, 12)).tolist() == now.values(range(8)).tolist()


def test_the_root_of_the_steps_halves_the_rate_at_four_times_as_many():
    rates = InverseSqrtSchedule(0.4, 100).values([0, 300, 1500, 10**12 - 100])
    np.testing.assert_allclose(rates, [0.4, 0.2, 0.1, 0.4 * 10 / 10**6], rtol=1e-13)


def test_each_agrees_with_optax_where_it_has_the_same():
    import jax
    import optax

    counts = np.arange(0, 40)
    pairs = [
        (constant_schedule(0.1), optax.constant_schedule(0.1)),
        (linear_schedule(0.3, 20, 0.1, 5), optax.linear_schedule(0.3, 0.1, 20, 5)),
        (cosine_schedule(0.3, 20, 0.03), optax.cosine_decay_schedule(0.3, 20, alpha=0.1)),
        (polynomial_schedule(0.3, 20, 0.1, 5, 2.5), optax.polynomial_schedule(0.3, 0.1, 2.5, 20, 5)),
        (exponential_schedule(0.3, 20, 0.03, 5), optax.exponential_decay(0.3, 20, 0.1, 5, end_value=0.03)),
        (
            step_decay(0.3, decay_every=7, decay_factor=0.5, min_learning_rate=0.05, transition_begin=5),
            optax.exponential_decay(0.3, 7, 0.5, 5, staircase=True, end_value=0.05),
        ),
    ]
    with jax.enable_x64(True):
        for ours, theirs in pairs:
            expected = [float(theirs(count)) for count in counts]
            np.testing.assert_allclose(ours.values(counts), expected, rtol=1e-12, err_msg=repr(ours))


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
        # One step of three, far out: float32 knows no odd count there.
        begin = 2**24 + 1
        for schedule in (
            linear_schedule(1.0, 4, 0.0, begin),
            polynomial_schedule(1.0, 4, 0.0, begin),
            exponential_schedule(1.0, 4, 0.5, begin),
            step_decay(1.0, decay_every=4, transition_begin=begin),
        ):
            near = attrs.evolve(schedule, transition_begin=0)
            assert values(schedule, range(begin, begin + 6)) == values(near, range(6))
            far = attrs.evolve(schedule, transition_begin=10**12)
            assert values(far, range(10**12, 10**12 + 6)) == values(near, range(6))


def test_many_drops_do_not_lose_the_factor_in_float32():
    schedule = step_decay(1.0, decay_every=1, decay_factor=0.999_999)
    with pytensor.config.change_flags(floatX="float32"):
        rates = schedule.values([10, 2**20, 2**24 + 1])
    np.testing.assert_allclose(rates, 0.999_999 ** np.array([10, 2**20, 2**24 + 1]), rtol=5e-6)


def test_a_horizon_may_be_written_in_terms_of_the_data():
    X = pt.matrix("X")
    schedule = cosine_schedule(0.3, 10 * (100 // X.shape[0]))
    few, many = {X: np.zeros((25, 1))}, {X: np.zeros((200, 1))}
    np.testing.assert_allclose(schedule(20).eval(few), 0.15, rtol=1e-14)
    np.testing.assert_allclose(schedule.values([20], few), [0.15], rtol=1e-14)
    message = r"CosineSchedule: total_steps must be a whole number of at least 1"
    with pytest.raises(ValueError, match=message):
        schedule(20).eval(many)
    with pytest.raises(ValueError, match=message):
        schedule.values([20], many)


@pytest.mark.parametrize(
    ("make", "least"),
    [
        (lambda n: linear_schedule(0.3, n), 1),
        (lambda n: linear_schedule(0.3, 5, 0.1, n), 0),
        (lambda n: exponential_schedule(0.3, n, 0.1), 1),
        (lambda n: exponential_schedule(0.3, 5, 0.1, n), 0),
        (lambda n: polynomial_schedule(0.3, n), 1),
        (lambda n: polynomial_schedule(0.3, 5, 0.1, n), 0),
        (lambda n: step_decay(0.3, decay_every=n), 1),
        (lambda n: step_decay(0.3, decay_every=5, transition_begin=n), 0),
        (lambda n: InverseSqrtSchedule(0.3, n), 1),
    ],
)
def test_a_symbolic_count_means_what_a_number_does_and_is_checked_in_the_graph(make, least):
    n = pt.iscalar("n")
    for count in (least, 3):
        symbolic = make(n).values(range(9), {n: count})
        np.testing.assert_allclose(symbolic, make(count).values(range(9)), rtol=1e-14)
    with pytest.raises(ValueError, match=rf"must be a whole number of at least {least}, and this one"):
        make(n).values(range(9), {n: least - 1})


def test_rates_may_be_symbolic():
    peak = pt.dscalar("peak")
    np.testing.assert_allclose(linear_schedule(peak, 4)(1).eval({peak: 2.0}), 1.5)
    assert "rate" in repr(constant_schedule(scalar_state("rate")))
    start, end, power, factor = (pt.dscalar(name) for name in ("start", "end", "power", "factor"))
    rates = exponential_schedule(start, 2, end).values([0, 1, 2], {start: 1.0, end: 0.01})
    np.testing.assert_allclose(rates, [1, 0.1, 0.01], rtol=1e-13)
    rates = polynomial_schedule(1.0, 2, power=power).values([0, 1, 2], {power: 3.0})
    assert rates.tolist() == [1.0, 0.125, 0.0]
    rates = step_decay(1.0, decay_every=1, decay_factor=factor).values([0, 1, 2], {factor: 0.5})
    assert rates.tolist() == [1.0, 0.5, 0.25]


@pytest.mark.parametrize(
    ("make", "bad", "message"),
    [
        (
            constant_schedule,
            -1.0,
            r"ConstantSchedule: learning_rate must be a finite number of 0 or more, and",
        ),
        (lambda v: linear_schedule(0.1, 5, v), math.nan, r"final_learning_rate must be a finite number"),
        (
            lambda v: cosine_schedule(v, 5),
            math.inf,
            r"learning_rate must be a finite number of 0 or more, and",
        ),
        (
            lambda v: exponential_schedule(0.1, 5, v),
            0.0,
            r"final_learning_rate must be a finite number above 0",
        ),
        (lambda v: polynomial_schedule(0.1, 5, power=v), 0.0, r"power must be a finite number above 0, and"),
        (
            lambda v: step_decay(0.1, decay_every=1, decay_factor=v),
            2.0,
            r"decay_factor must be a number above",
        ),
        (
            lambda v: InverseSqrtSchedule(v, 5),
            -1.0,
            r"learning_rate must be a finite number of 0 or more, and",
        ),
    ],
)
def test_a_symbolic_number_is_checked_in_the_graph(make, bad, message):
    value = pt.dscalar("value")
    with pytest.raises(ValueError, match=message):
        make(value).values([1], {value: bad})


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
        (
            lambda: linear_schedule(0.1, 10, 0.0, -1),
            r"transition_begin must be a whole number of at least 0; got -1",
        ),
        (
            lambda: exponential_schedule(0.1, 10, 0.0),
            r"ExponentialSchedule: final_learning_rate must be a finite number above 0",
        ),
        (lambda: exponential_schedule(0.0, 10, 0.1), r"learning_rate must be a finite number above 0"),
        (lambda: polynomial_schedule(0.1, 10, power=0.0), r"power must be a finite number above 0; got 0\.0"),
        (
            lambda: step_decay(0.1, decay_every=0),
            r"StepDecay: decay_every must be a whole number of at least 1",
        ),
        (
            lambda: step_decay(0.1, decay_every=1, decay_factor=1.5),
            r"decay_factor must be a number above 0 and at most 1",
        ),
        (lambda: InverseSqrtSchedule(0.1, 0), r"timescale must be a whole number of at least 1; got 0"),
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
        (lambda: step_decay(0.1, 30), r"positional argument"),
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


def test_schedules_are_values():
    assert cosine_schedule(0.1, 10) == CosineSchedule(learning_rate=0.1, total_steps=10)
    assert linear_schedule(0.1, 10) == LinearSchedule(0.1, 10, 0.0)
    assert constant_schedule(0.1) == ConstantSchedule(0.1)
    assert cosine_schedule(0.1, 10) != linear_schedule(0.1, 10)
    assert len({cosine_schedule(0.1, 10), cosine_schedule(0.1, 10)}) == 1
    for schedule in (
        exponential_schedule(0.1, 10, 0.01, 5),
        polynomial_schedule(0.1, 10, power=2.0),
        step_decay(0.1, decay_every=30),
        InverseSqrtSchedule(0.1, 100),
    ):
        again = eval(repr(schedule), vars(ptml.optim))
        assert again == schedule
        assert pickle.loads(pickle.dumps(schedule)) == schedule
