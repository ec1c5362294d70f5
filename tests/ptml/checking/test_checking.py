"""Gradient checks find wrong gradients, and comparisons of backends find what differs."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import ptml
from ptml.activations import ReLU, Tanh
from ptml.backends.native import native
from ptml.checking import GradientError, agreement
from ptml.fused import Fused
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import adam, compile_train

ROWS = np.random.default_rng(0).normal(size=(6, 2))


class Wrong(Fused):
    """A cube whose gradient is that of a square."""

    def build(self, x):
        return [x**3]

    def pullback(self, inputs, outputs, cotangents):
        return [2 * inputs[0] * cotangents[0]]


class OffOnJax(Fused):
    """The identity, which the JAX kernel of this test gets slightly wrong."""

    def build(self, x):
        return [x * 1.0]


@native("jax", OffOnJax)
def _off(op, node, **kwargs):
    return lambda x: x * 1.25


def test_right_gradients_pass_with_dropout_and_statistics():
    net = Sequential(
        Linear("fc1", n_in=2, n_out=8), BatchNorm("bn", n_in=8), Tanh(), Dropout("drop", p=0.5),
        Linear("fc2", n_in=8, n_out=1),
    )  # fmt: skip
    X = Input("X", shape=(None, 2))
    loss, y = supervised_loss(net(X), SquaredError())
    found = ptml.check_gradients(loss, {X: ROWS, y: ROWS[:, :1]}, wrt=[*ptml.slots(loss, "*/W"), X])
    assert list(found) == ["fc1/W", "fc2/W", "X"]
    assert max(found.values()) < 1e-6


def test_a_wrong_gradient_is_named_by_parameter_and_entry():
    fc = Linear("fc", n_in=2, n_out=1, weight_initializer=ptml.initializers.Ones())
    loss = Wrong()(fc(Input("X", shape=(None, 2)))).sum()
    with pytest.raises(GradientError) as caught:
        ptml.check_gradients(loss, [np.array([[1.0, 2.0]])])
    # y = 3: the gradient of y**3 by the second weight is 27 * 2, and 2 * 3 * 2 is what it says.
    assert "with respect to fc/W[1, 0] is 12, and the difference quotient 54" in str(caught.value)
    assert "2 of the 2 entries that were tried are wrong" in str(caught.value)


def test_scalars_have_no_entry_and_large_numbers_a_larger_step():
    x = pt.dscalar("x")
    found = ptml.check_gradients(pt.exp(x / 1e6), {x: 1e6}, wrt=[x])
    assert found["x"] < 1e-9


def test_what_cannot_be_checked_says_so():
    fc = Linear("fc", n_in=2, n_out=1)
    with pytest.raises(TypeError, match="the loss is a scalar tensor"):
        ptml.check_gradients(fc(Input("X", shape=(None, 2))), [ROWS])
    with pytest.raises(ValueError, match="there is nothing to check"):
        ptml.check_gradients(pt.dvector("x").sum(), [ROWS[0]])
    with pytensor.config.change_flags(floatX="float32"):
        loss = Linear("fc", n_in=2, n_out=1)(Input("X", shape=(None, 2))).sum()
        with pytest.raises(TypeError, match="is float32, whose 6 digits leave none"):
            ptml.check_gradients(loss, [ROWS.astype("float32")])


def _step(**options):
    with pytensor.config.change_flags(floatX="float32"):
        net = Sequential(Linear("fc1", n_in=2, n_out=4), ReLU(), Dropout("drop", p=0.5))
        loss, _ = supervised_loss(net(Input("X", shape=(None, 2))), SquaredError())
        return compile_train(loss, adam(1e-2), seed=0, **options)


def test_backends_agree_on_results_and_on_the_state_after_a_call():
    step = _step(observe=["update_norm"])
    before = step.store.state
    batch = ROWS.astype("float32"), np.ones((6, 4), "float32")
    found = ptml.compare_backends(step, batch, ["c", "jax", "mlx"])
    assert list(found.differences) == ["c", "jax", "mlx"]
    assert list(found.differences["c"]) == ["output 0", "output 1", *step.state]
    assert found.largest < 1e-5
    # Keys and clocks are whole numbers, the same everywhere.
    assert all(of["drop/key"] == 0 == of["adam/step_count"] for of in found.differences.values())
    assert step.store.state == before
    assert str(found).splitlines()[0] == "differences from numba"


def test_a_backend_that_differs_is_seen():
    x = pt.dvector("x")
    found = ptml.compare_backends(ptml.function([x], OffOnJax()(x)), [np.array([1.0, 4.0])], ["c", "jax"])
    assert found.differences["c"]["output 0"] == 0
    assert found.differences["jax"]["output 0"] == pytest.approx(0.25)
    assert found.largest == pytest.approx(0.25)


def test_what_cannot_take_part_is_skipped_or_raised(monkeypatch):
    x = pt.dvector("x")
    program = ptml.function([x], x + 1)
    monkeypatch.setattr(agreement, "KNOWN", {"mlx": "mlx", "pytorch": "no_such_package"})
    found = ptml.compare_backends(program, [np.ones(2)])
    assert found.skipped["pytorch"] == "no_such_package is not installed"
    assert found.skipped["mlx"].startswith("MLX has no float64")
    assert "mlx was skipped: MLX has no float64" in str(found)
    with pytest.raises(TypeError, match="MLX has no float64"):
        ptml.compare_backends(program, [np.ones(2)], ["mlx"])


def test_infinities_and_shapes_count():
    inf = float("inf")
    assert agreement._distance(np.array([1.0, inf]), np.array([1.0, inf])) == 0
    assert agreement._distance(np.array([np.nan]), np.array([np.nan])) == 0
    assert agreement._distance(np.array([1.0, inf]), np.array([1.0, 3.0])) == inf
    assert agreement._distance(np.zeros(2), np.zeros(3)) == inf
    assert agreement._distance(np.array([1]), np.array([2])) == inf
