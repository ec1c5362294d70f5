"""Channel dropout, alpha dropout and drop-path: what is dropped together, and what is kept on average."""

from __future__ import annotations

import numpy as np
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.activations import SELU_ALPHA, SELU_SCALE
from ptml.layers import AlphaDropout, DropPath, Input, SpatialDropout

PYTHON = Mode(linker="py", optimizer="fast_compile")
FAMILY = [SpatialDropout, AlphaDropout, DropPath]


def _program(layer, shape):
    X = Input("X", shape)
    return ptml.function([X], layer(X), seed=0, mode=PYTHON)


def test_a_channel_is_dropped_at_all_positions_of_an_example():
    y = _program(SpatialDropout("drop", p=0.25), (None, None, None, None))(np.ones((300, 3, 2, 50)))
    assert set(np.unique(y)) == {0.0, 1 / 0.75}
    assert (y == y[:, :1, :1, :]).all()
    dropped = (y[:, 0, 0, :] == 0).mean()
    assert abs(dropped - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 15000)


def test_drop_path_drops_whole_examples():
    y = _program(DropPath("path", p=0.25), (None, None, None))(np.ones((20000, 2, 3)))
    assert set(np.unique(y)) == {0.0, 1 / 0.75}
    assert (y == y[:, :1, :1]).all()
    assert abs((y[:, 0, 0] == 0).mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 20000)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_alpha_dropout_keeps_mean_and_variance(p):
    x = np.random.default_rng(0).normal(size=(1000, 500))
    y = _program(AlphaDropout("drop", p=p), (None, None))(x)
    # Eight standard errors of the mean and of the variance of half a million draws.
    assert abs(y.mean()) < 0.012
    assert abs(y.var() - 1) < 0.02
    # What is dropped are copies of one value, where SELU saturates, scaled and shifted.
    values, counts = np.unique(y, return_counts=True)
    low = -SELU_SCALE * SELU_ALPHA
    a = (1 - p + p * (1 - p) * low**2) ** -0.5
    np.testing.assert_allclose(values[counts.argmax()], a * low - a * p * low, rtol=1e-12)
    assert abs(counts.max() / y.size - p) < 0.01


@pytest.mark.parametrize("kind", FAMILY)
def test_each_call_draws_another_mask_and_nothing_is_drawn_at_p_0(kind):
    program = _program(kind("drop"), (None, None))
    x = np.ones((40, 8))
    assert not np.array_equal(program(x), program(x))
    never = kind("drop", p=0.0)
    assert ptml.slots(never) == ()
    np.testing.assert_array_equal(_program(never, (None, None))(x), x)


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_what_is_no_probability_is_refused(kind, p):
    with pytest.raises(ValueError, match=rf"drop \({kind.__name__}\): p must be a probability in \[0, 1\)"):
        kind("drop", p=p)


@pytest.mark.parametrize("kind", FAMILY)
def test_integers_are_refused_and_float32_stays(kind, float32):
    with pytest.raises(TypeError, match=rf"drop \({kind.__name__}\) computes with floating-point numbers"):
        kind("drop")(Input("X", (None, 3), dtype="int64"))
    assert kind("drop")(Input("X", (None, 3))).type.dtype == "float32"


def test_too_few_axes_are_refused():
    with pytest.raises(
        ValueError, match=r"drop \(SpatialDropout\) takes \(batch, \.\.\., channels\); got 1 axes"
    ):
        SpatialDropout("drop")(Input("X", (3,)))
    with pytest.raises(ValueError, match=r"path \(DropPath\) takes \(batch, \.\.\.\); got 0 axes"):
        DropPath("path")(Input("X", ()))
