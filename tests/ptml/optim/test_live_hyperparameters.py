"""Hyperparameters that are leaves of the state: edited between steps, with nothing compiled again."""

from __future__ import annotations

import numpy as np
import pytest

from ptml.optim import (
    adam,
    adamw,
    add_weight_decay,
    chain,
    clip_by_global_norm,
    clip_by_value,
    cosine_schedule,
    exponential_schedule,
    join_schedules,
    linear_onecycle_schedule,
    linear_schedule,
    polynomial_schedule,
    scalar_state,
    scale,
    sgd,
    step_decay,
    trace,
)

#: A rule by one of its hyperparameters, and two values of it that lead to different steps.
LIVE = {
    "sgd, learning_rate": (lambda h: sgd(h), 0.1, 0.02),
    "sgd, momentum": (lambda h: sgd(0.1, momentum=h), 0.9, 0.3),
    "adam, learning_rate": (lambda h: adam(h), 0.1, 0.02),
    "adam, beta1": (lambda h: adam(beta1=h), 0.9, 0.5),
    "adam, beta2": (lambda h: adam(beta2=h), 0.999, 0.9),
    "adam, epsilon": (lambda h: adam(epsilon=h), 1e-8, 1.0),
    "adamw, weight_decay": (lambda h: adamw(0.1, weight_decay=h), 0.0, 0.5),
    "clip_by_global_norm, max_norm": (lambda h: chain(clip_by_global_norm(h), sgd(0.1)), 1.0, 0.1),
    "clip_by_value, max_value": (lambda h: chain(clip_by_value(-0.1, h), sgd(0.1)), 1.0, 0.1),
    "scale, factor": (lambda h: chain(sgd(0.1), scale(h)), 1.0, -1.0),
    "add_weight_decay, weight_decay": (lambda h: chain(add_weight_decay(h), sgd(0.1)), 0.0, 0.5),
    "trace, decay": (lambda h: chain(trace(h), sgd(0.1)), 0.9, 0.3),
    "linear_schedule, learning_rate": (lambda h: sgd(linear_schedule(h, 9)), 0.1, 0.5),
    "linear_schedule, final_learning_rate": (lambda h: sgd(linear_schedule(0.1, 9, h)), 0.0, 0.5),
    "cosine_schedule, learning_rate": (lambda h: sgd(cosine_schedule(h, 9)), 0.1, 0.5),
    "exponential_schedule, final_learning_rate": (lambda h: sgd(exponential_schedule(0.1, 9, h)), 0.01, 0.5),
    "polynomial_schedule, power": (lambda h: sgd(polynomial_schedule(0.1, 9, power=h)), 1.0, 3.0),
    "step_decay, decay_factor": (lambda h: sgd(step_decay(0.1, decay_every=1, decay_factor=h)), 0.9, 0.5),
    "linear_onecycle_schedule, div_factor": (
        lambda h: sgd(linear_onecycle_schedule(0.1, 9, div_factor=h)),
        25.0,
        2.0,
    ),
    "join_schedules, learning_rate": (
        lambda h: sgd(join_schedules([linear_schedule(h, 2), linear_schedule(h, 9)], [2])),
        0.1,
        0.5,
    ),
}


@pytest.mark.parametrize("name", LIVE)
def test_a_leaf_in_the_place_of_a_number_is_read_at_every_step(run, name):
    make, first, second = LIVE[name]
    gradients = np.random.default_rng(0).normal(size=(6, 2))
    start = [1.0, -2.0]
    live = run(make(scalar_state("steered", first)), p=start)
    by_number, by_other = run(make(first), p=start), run(make(second), p=start)
    function = live.program.function

    expected = by_number.follow(gradients[:3])
    np.testing.assert_allclose(live.follow(gradients[:3]), expected, rtol=1e-12)
    unsteered = by_number.program.state
    live.program.store.set({"steered": second})
    by_other.program.store.load(unsteered)
    np.testing.assert_allclose(live.follow(gradients[3:]), by_other.follow(gradients[3:]), rtol=1e-12)

    assert live["steered"] == second
    assert live.program.function is function
    assert not np.allclose(by_number.follow(gradients[3:]), by_other["p"])


def test_a_count_may_be_a_leaf_too(run):
    from ptml.initializers import Constant
    from ptml_state import Role, Slot

    horizon = Slot("horizon", Role.OPTIMIZER, "int64", (), Constant(10)).handle
    live = run(sgd(linear_schedule(1.0, horizon)), p=0.0)
    live(1.0)
    live(1.0)
    assert live["p"] == pytest.approx(-1.9)
    live.program.store.set({"horizon": 4})
    live(1.0)
    assert live["p"] == pytest.approx(-2.4)
    live.program.store.set({"horizon": 0})
    with pytest.raises(ValueError, match=r"LinearSchedule: total_steps must be a whole number of at least 1"):
        live(1.0)


def test_a_leaf_is_cast_to_the_dtype_of_its_parameter(run):
    live = run(sgd(scalar_state("rate", 0.1)), dtype="float32", p=[1.0])
    live([1.0])
    assert live["p"].dtype == "float32"
    assert live["rate"].dtype == "float64"
