"""Gradient noise: its variance, its leaves, and that it resumes and is the same everywhere."""

from __future__ import annotations

import math

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

from ptml import function
from ptml.optim import AddNoise, add_noise, chain, scalar_state, sgd, take_step
from ptml_state import Role


@pytest.fixture
def noisy(new_parameter):
    """Compile steps of sgd(1) on gradients of zero, so that what moves the parameters is noise."""

    def compiled(noise, *, size=2, dtype="float64", **options):
        p, q = new_parameter(np.zeros(size), "p", dtype), new_parameter(0.0, "q", dtype)
        zeros = [pt.zeros((size,), dtype=dtype), pt.zeros((), dtype=dtype)]
        steps = take_step(chain(noise, sgd(1.0)), zeros, [p, q])
        options = options or {"mode": Mode(linker="py", optimizer="fast_compile")}
        return function([], [], updates=steps, **{"seed": 3, **options})

    return compiled


def test_the_variance_falls_as_the_paper_says(noisy):
    step = noisy(add_noise(0.3, 2.0), size=20_000, seed=0, backend="numba")
    before = step.state["p"]
    for t in range(3):
        step()
        after = step.state["p"]
        deviation = math.sqrt(0.3 / (1 + t) ** 2)
        moved = after - before
        assert np.std(moved) == pytest.approx(deviation, rel=0.02)
        assert np.mean(moved) == pytest.approx(0.0, abs=4 * deviation / math.sqrt(20_000))
        before = after


def test_parameters_and_steps_have_noise_of_their_own(noisy):
    step = noisy(add_noise(1.0, 0.0))
    step()
    first = step.state
    step()
    moves = [*first["p"], first["q"], *(step.state["p"] - first["p"]), step.state["q"] - first["q"]]
    assert len({round(float(move), 12) for move in moves}) == 6


def test_its_state_is_a_key_and_a_clock(noisy):
    step = noisy(add_noise(namespace="shake"))
    step()
    roles = step.state.roles
    assert (roles["shake/key"], roles["shake/step_count"]) == (Role.GENERATOR, Role.CLOCK)
    assert step.state["shake/step_count"] == 1


def test_it_resumes_exactly(noisy):
    whole, half = noisy(add_noise(0.3)), noisy(add_noise(0.3))
    for _ in range(4):
        whole()
    for _ in range(2):
        half()
    resumed = noisy(add_noise(0.3), state=half.state, seed=99)
    for _ in range(2):
        resumed()
    assert resumed.state == whole.state


def test_the_seed_decides(noisy):
    one, same, other = noisy(add_noise()), noisy(add_noise()), noisy(add_noise(), seed=4)
    for step in (one, same, other):
        step()
    assert one.state == same.state
    assert one.state["p"][0] != other.state["p"][0]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_narrow_parameters_stay_narrow(noisy, dtype):
    step = noisy(add_noise(0.3), dtype=dtype)
    step()
    assert step.state["p"].dtype == dtype
    assert (step.state["p"] != 0).all()


def test_every_backend_draws_the_same_noise(noisy, backend):
    reference, step = (
        noisy(add_noise(0.3), dtype="float32"),
        noisy(add_noise(0.3), dtype="float32", backend=backend),
    )
    for _ in range(2):
        reference()
        step()
    np.testing.assert_allclose(step.state["p"], reference.state["p"], rtol=1e-5)
    np.testing.assert_array_equal(step.state["add_noise/key"], reference.state["add_noise/key"])


def test_the_size_of_the_noise_is_steered(noisy):
    step = noisy(add_noise(scalar_state("eta", 0.0)))
    step()
    assert not step.state["p"].any()
    step.store.set({"eta": 1.0})
    step()
    assert step.state["p"].all()
    step.store.set({"eta": -1.0})
    with pytest.raises(ValueError, match=r"AddNoise: eta must be a finite number of 0 or more, and this one"):
        step()


def test_it_is_a_value_that_refuses_impossible_numbers():
    assert add_noise(0.3, 0.55) == AddNoise(0.3)
    assert repr(add_noise(0.3, 1.0, namespace="shake")) == "AddNoise(0.3, 1.0, namespace='shake')"
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="AddNoise: eta must be a finite number of 0 or more; got"):
            add_noise(bad)
        with pytest.raises(ValueError, match="AddNoise: gamma must be a finite number of 0 or more; got"):
            add_noise(0.1, bad)
