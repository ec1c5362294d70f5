"""Schedules made of schedules: joined, in one cycle, and behind a warm-up."""

from __future__ import annotations

import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import ptml.optim
from ptml.optim import (
    JoinedSchedules,
    constant_schedule,
    cosine_schedule,
    inverse_sqrt,
    join_schedules,
    linear_onecycle_schedule,
    linear_schedule,
    scalar_state,
    warmup_cosine,
)


def test_each_schedule_starts_from_its_own_zero():
    schedule = join_schedules(
        [linear_schedule(0.0, 4, 1.0), linear_schedule(1.0, 2), constant_schedule(0.5)], [4, 7]
    )
    assert schedule.values(range(9)).tolist() == [0, 0.25, 0.5, 0.75, 1.0, 0.5, 0.0, 0.5, 0.5]


def test_any_function_of_a_count_may_be_joined():
    def falling(count):
        return 1.0 / (count + 1.0)

    schedule = join_schedules([lambda count: 0.25, falling], [2])
    np.testing.assert_allclose(schedule.values(range(5)), [0.25, 0.25, 1, 1 / 2, 1 / 3], rtol=1e-15)


def test_a_schedule_is_asked_for_no_count_below_zero():
    def root(count):
        return pt.sqrt(count)

    schedule = join_schedules([constant_schedule(0.0), root], [5])
    assert schedule.values([0, 5, 9]).tolist() == [0.0, 0.0, 2.0]


def test_boundaries_are_exact_at_counts_that_float32_cannot_tell_apart():
    schedule = join_schedules(
        [constant_schedule(1.0), constant_schedule(0.5), constant_schedule(0.25)], [2**24 + 1, 10**12]
    )
    with pytensor.config.change_flags(floatX="float32"):
        rates = schedule.values([2**24, 2**24 + 1, 2**31, 10**12 - 1, 10**12])
    assert rates.dtype == "float32"
    assert rates.tolist() == [1.0, 0.5, 0.5, 0.5, 0.25]


def test_one_schedule_needs_no_boundary():
    assert join_schedules([linear_schedule(1.0, 4)], []).values([0, 2]).tolist() == [1.0, 0.5]


def test_boundaries_may_be_symbolic_and_are_checked_in_the_graph():
    n, m = pt.lscalar("n"), pt.lscalar("m")
    schedule = join_schedules(
        [constant_schedule(1.0), constant_schedule(2.0), constant_schedule(3.0)], [n, m]
    )
    assert schedule.values([2, 3, 5], {n: 3, m: 5}).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match=r"each boundary is above the one before it, and these"):
        schedule.values([2], {n: 3, m: 3})
    with pytest.raises(ValueError, match=r"each of boundaries must be a whole number of at least 1"):
        schedule.values([2], {n: 0, m: 3})


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: join_schedules([], []), ValueError, r"give at least one schedule"),
        (
            lambda: join_schedules([constant_schedule(0.1)], [1]),
            ValueError,
            r"1 schedules meet at 0 boundaries; got 1",
        ),
        (
            lambda: join_schedules([constant_schedule(0.1)] * 3, [5, 5]),
            ValueError,
            r"each boundary is above the one before it; got \[5, 5\]",
        ),
        (
            lambda: join_schedules([constant_schedule(0.1)] * 2, [0]),
            ValueError,
            r"boundaries must be a whole number of at least 1; got 0",
        ),
        (
            lambda: join_schedules([0.1, constant_schedule(0.1)], [5]),
            TypeError,
            r"0\.1 at position 0 is no schedule",
        ),
        (lambda: join_schedules(constant_schedule(0.1), [5]), TypeError, r"takes a list of schedules; got"),
        (
            lambda: join_schedules([constant_schedule(0.1)] * 2, 5),
            TypeError,
            r"takes a list of counts; got 5",
        ),
        (
            lambda: warmup_cosine(0.1, 10, warmup_steps=10),
            ValueError,
            r"the decay follows the warm-up within total_steps=10; got warmup_steps=10",
        ),
        (
            lambda: linear_onecycle_schedule(0.1, 100, 0.9, 0.5),
            ValueError,
            r"pct_start must be below pct_final; got 0\.9 and 0\.5",
        ),
        (
            lambda: linear_onecycle_schedule(0.1, 100, pct_final=1.0),
            ValueError,
            r"pct_final must be a number in \(0, 1\); got 1\.0",
        ),
        (
            lambda: linear_onecycle_schedule(0.1, 3),
            ValueError,
            r"total_steps=3, pct_start=0\.3 and pct_final=0\.85 give them \(0, 2, 1\)",
        ),
        (
            lambda: linear_onecycle_schedule(0.1, 100, div_factor=0.0),
            ValueError,
            r"div_factor must be a finite number above 0",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_cycle_goes_up_back_and_down():
    schedule = linear_onecycle_schedule(1.0, 100, 0.3, 0.8, 10.0, 100.0)
    rates = schedule.values([0, 15, 30, 55, 80, 90, 100, 10**12])
    np.testing.assert_allclose(rates, [0.1, 0.55, 1.0, 0.55, 0.1, 0.0505, 0.001, 0.001], rtol=1e-13)


def test_a_fraction_is_the_decimal_that_was_written():
    # In floats 0.29 * 100 is 28.999999999999996.
    schedule = linear_onecycle_schedule(1.0, 100, 0.29, 0.57)
    assert schedule.values([29]).tolist() == [1.0]
    np.testing.assert_allclose(schedule.values([57]), [0.04], rtol=1e-15)


def test_a_cycle_is_exact_beyond_float32():
    total = 10 * (2**24 + 1)
    schedule = linear_onecycle_schedule(1.0, total, 0.3, 0.8)
    with pytensor.config.change_flags(floatX="float32"):
        top = 3 * total // 10
        assert schedule.values([top]).tolist() == [1.0]
        assert schedule.values([total, 10**12]).tolist() == [np.float32(4e-6)] * 2


def test_a_cycle_over_a_symbolic_horizon_is_the_same():
    n, pct = pt.lscalar("n"), pt.dscalar("pct")
    counts = range(0, 130, 7)
    expected = linear_onecycle_schedule(0.1, 100).values(counts)
    np.testing.assert_allclose(
        linear_onecycle_schedule(0.1, n).values(counts, {n: 100}), expected, rtol=1e-14
    )
    live = linear_onecycle_schedule(scalar_state("peak", 0.1), n, pct)
    np.testing.assert_allclose(live.values(counts, {n: 100, pct: 0.3}), expected, rtol=1e-14)
    with pytest.raises(ValueError, match=r"each of the three phases needs a step"):
        linear_onecycle_schedule(0.1, n).values(counts, {n: 3})


def test_a_warm_up_rises_in_a_line_and_decays_along_a_cosine():
    schedule = warmup_cosine(1.0, 30, warmup_steps=10, final_learning_rate=0.2, initial_learning_rate=0.5)
    np.testing.assert_allclose(
        schedule.values([0, 5, 10, 20, 30, 31]), [0.5, 0.75, 1, 0.6, 0.2, 0.2], rtol=1e-14
    )
    n = pt.lscalar("n")
    symbolic = warmup_cosine(1.0, 3 * n, warmup_steps=n)
    np.testing.assert_allclose(
        symbolic.values(range(35), {n: 10}),
        warmup_cosine(1.0, 30, warmup_steps=10).values(range(35)),
        rtol=1e-14,
    )
    assert warmup_cosine(0.1, 30, warmup_steps=10) == JoinedSchedules(
        [linear_schedule(0.0, 10, 0.1), cosine_schedule(0.1, 20)], [10]
    )


def test_the_transformers_schedule_is_the_smaller_of_a_line_and_a_root():
    width, warmup = 512, 40
    schedule = inverse_sqrt((width * warmup) ** -0.5, warmup_steps=warmup)
    counts = np.arange(1, 200)
    expected = width**-0.5 * np.minimum(counts**-0.5, counts * warmup**-1.5)
    np.testing.assert_allclose(schedule.values(counts), expected, rtol=1e-13)


def test_each_agrees_with_optax_where_it_has_the_same():
    import jax
    import optax

    counts = np.arange(0, 60)
    pairs = [
        (
            join_schedules([linear_schedule(0.0, 10, 0.1), cosine_schedule(0.1, 20)], [10]),
            optax.join_schedules(
                [optax.linear_schedule(0.0, 0.1, 10), optax.cosine_decay_schedule(0.1, 20)], [10]
            ),
        ),
        (linear_onecycle_schedule(0.1, 50), optax.linear_onecycle_schedule(50, 0.1)),
        (
            linear_onecycle_schedule(0.1, 50, 0.2, 0.6, 5.0, 20.0),
            optax.linear_onecycle_schedule(50, 0.1, 0.2, 0.6, 5.0, 20.0),
        ),
        (
            warmup_cosine(0.1, 50, warmup_steps=10, final_learning_rate=0.01),
            optax.warmup_cosine_decay_schedule(0.0, 0.1, 10, 50, 0.01),
        ),
    ]
    with jax.enable_x64(True):
        for ours, theirs in pairs:
            expected = [float(theirs(count)) for count in counts]
            np.testing.assert_allclose(
                ours.values(counts), expected, rtol=1e-6, atol=1e-12, err_msg=repr(ours)
            )


def test_joined_schedules_are_values():
    for schedule in (
        warmup_cosine(0.1, 30, warmup_steps=10),
        inverse_sqrt(0.1, warmup_steps=10),
        linear_onecycle_schedule(0.1, 50, div_factor=5.0),
    ):
        assert eval(repr(schedule), vars(ptml.optim)) == schedule
        assert pickle.loads(pickle.dumps(schedule)) == schedule
        assert hash(schedule) == hash(pickle.loads(pickle.dumps(schedule)))
