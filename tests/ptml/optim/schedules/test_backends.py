"""Schedules on every backend: one rate, also at counts that float32 cannot tell apart."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import ptml
from ptml.optim import (
    constant_schedule,
    cosine_schedule,
    exponential_schedule,
    inverse_sqrt,
    linear_onecycle_schedule,
    linear_schedule,
    polynomial_schedule,
    step_decay,
    warmup_cosine,
)


@pytest.mark.usefixtures("float32")
@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_every_backend_gives_the_rates_that_are_tabulated(backend):
    assert pytensor.config.floatX == "float32"
    count, n = pt.lscalar("count"), pt.lscalar("n")
    far = 2**24 + 1
    schedules = [
        constant_schedule(0.1),
        linear_schedule(0.3, n, 0.1, far),
        cosine_schedule(0.3, 10 * n, 0.1),
        exponential_schedule(0.3, n, 0.01, far),
        polynomial_schedule(0.3, n, 0.1, far, 2.0),
        step_decay(0.3, decay_every=n, decay_factor=0.9, transition_begin=far),
        linear_onecycle_schedule(0.3, 5 * n),
        warmup_cosine(0.3, 20 * n, warmup_steps=n),
        inverse_sqrt(0.3, warmup_steps=n),
    ]
    program = ptml.function([count, n], [schedule(count) for schedule in schedules], backend=backend)
    for at in (0, 3, 40, far, far + 1, far + 3, 2**31, 10**12):
        rates = program(at, 4)
        assert {rate.dtype for rate in rates} == {np.dtype("float32")}
        expected = [schedule.values(at, {n: 4}) for schedule in schedules]
        np.testing.assert_allclose(rates, expected, rtol=2e-5, atol=1e-7)
    with pytest.raises(ValueError, match=r"must be a whole number of at least 1, and this one"):
        program(3, 0)
