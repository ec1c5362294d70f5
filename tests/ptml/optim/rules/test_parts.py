"""What rules share: decays end at zero, and not among the denormal numbers that processors are slow with."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from ptml.optim import (
    adadelta,
    adafactor,
    adam,
    adamax,
    adamw,
    chain,
    lamb,
    lion,
    muon,
    nadam,
    radam,
    rmsprop,
    sgd,
    trace,
)
from ptml.optim.rules.parts import faded

#: Rules with state that falls to zero where gradients are zero.
FADING = {
    "sgd": sgd(momentum=0.9),
    "nesterov": sgd(momentum=0.9, nesterov=True),
    "trace": chain(trace(0.9), sgd()),
    "adam": adam(),
    "adamw": adamw(weight_decay=0.0),
    "nadam": nadam(),
    "radam": radam(),
    "adamax": adamax(),
    "rmsprop": rmsprop(momentum=0.9),
    "rmsprop_centered": rmsprop(centered=True),
    "adadelta": adadelta(),
    "lion": lion(),
    "lamb": lamb(),
    "muon": muon(),
    "adafactor": adafactor(beta1=0.9),
}

#: State that has a floor, which an epsilon is.
FLOORED = ("adamax/infinity_norm", "adafactor/root_mean_square")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_decay_leaves_normal_numbers_and_zero(dtype):
    tiny = np.finfo(dtype).tiny
    values = np.array([0, 1, -3, 2 * tiny, -2 * tiny, 1.99 * tiny, tiny, -tiny / 8, np.inf, -np.inf], dtype)
    decay, x = pt.scalar(dtype=dtype), pt.vector(dtype=dtype)
    left = pytensor.function([decay, x], faded(decay, x), mode="FAST_COMPILE")(np.asarray(0.5, dtype), values)
    np.testing.assert_array_equal(left, [0, 0.5, -1.5, tiny, -tiny, 0, 0, 0, np.inf, -np.inf])
    assert left.dtype == dtype


def test_a_decay_leaves_nan_undefined(backend):
    x = pt.vector(dtype="float32")
    program = pytensor.function([x], faded(pt.constant(np.float32(0.5)), x), mode="FAST_COMPILE")
    np.testing.assert_array_equal(program(np.array([np.nan, 2], "float32")), [np.nan, 1])


def test_without_gradients_what_decays_is_zero_in_the_end_and_never_denormal(run):
    for name, rule in FADING.items():
        work = run(rule, dtype="float32", options={"backend": "numba"}, p=np.ones((2, 3)))
        work(np.full((2, 3), 0.5))
        state = work.program.state
        fading = [a for a, leaf in state.items() if leaf.shape and a != "p" and not a.startswith(FLOORED)]
        assert fading, name
        assert all(state[address].any() for address in fading), name
        # From here it takes a hundred steps of a decay of 0.999, and not a hundred thousand.
        work.program.store.set({address: np.full((2, 3), 1.3e-38, "float32") for address in fading})
        for _ in range(150):
            work(np.zeros((2, 3)))
            state = work.program.state
            for address in fading:
                leaf = np.abs(state[address])
                assert not ((leaf > 0) & (leaf < np.finfo("float32").tiny)).any(), (name, address)
        assert [address for address in fading if state[address].any()] == [], name
        np.testing.assert_allclose(state["p"], 1, atol=0.3, err_msg=name)
