"""The dense layer: values, gradients, and the errors of shapes, dtypes and hyperparameters."""

from __future__ import annotations

import copy
import pickle

import attrs
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.initializers import Constant, HeNormal, Ones, Zeros
from ptml.layers import Input, Linear, linear
from ptml_state import Role

PYTHON = Mode(linker="py", optimizer="fast_compile")


def test_a_product_of_rows_with_the_weight_plus_the_bias():
    fc = Linear("fc", n_in=3, n_out=2)
    X = Input("X", (None, 3))
    state = ptml.init(fc, seed=0)
    state = state.replace({"fc/b": np.array([10.0, 20.0])})
    program = ptml.function([X], fc(X), state=state, mode=PYTHON)
    x = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_allclose(program(x), x @ state["fc/W"] + [10.0, 20.0], rtol=1e-14)


def test_the_weight_is_the_transpose_of_torchs():
    fc = Linear("fc", n_in=2, n_out=2, bias=False)
    X = Input("X", (None, 2))
    state = ptml.init(fc, seed=0).replace({"fc/W": np.array([[1.0, 2.0], [3.0, 4.0]])})
    np.testing.assert_array_equal(
        ptml.function([X], fc(X), state=state, mode=PYTHON)([[1.0, 0.0]]), [[1.0, 2.0]]
    )


@pytest.mark.parametrize("leading", [(), (4,), (2, 3), (2, 1, 3)])
def test_any_axes_may_come_before_the_features(leading):
    fc = Linear("fc", n_in=3, n_out=2, weight_initializer=HeNormal(), bias_initializer=Ones())
    X = Input("X", (*leading, 3))
    Y = fc(X)
    assert Y.type.shape == (*leading, 2)
    program = ptml.function([X], Y, seed=1, mode=PYTHON)
    x = np.random.default_rng(0).normal(size=(*leading, 3))
    np.testing.assert_allclose(program(x), x @ program.state["fc/W"] + 1.0, rtol=1e-14)


def test_gradients_are_the_closed_forms():
    fc = Linear("fc", n_in=3, n_out=2)
    X = Input("X", (None, 3))
    gradients = pytensor.grad((fc(X) ** 2).sum() / 2, [X, fc.W, fc.b])
    program = ptml.function([X], gradients, seed=0, mode=PYTHON)
    x = np.random.default_rng(0).normal(size=(4, 3))
    W, b = program.state["fc/W"], program.state["fc/b"]
    y = x @ W + b
    for got, wanted in zip(program(x), (y @ W.T, x.T @ y, y.sum(axis=0)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-13)


def test_it_declares_a_weight_and_a_bias_with_its_initializers():
    fc = Linear("fc", n_in=3, n_out=2, weight_initializer=Constant(0.5), bias_initializer=Constant(2.0))
    assert [handle.slot.address for handle in ptml.slots(fc)] == ["fc/W", "fc/b"]
    assert {handle.slot.role for handle in ptml.slots(fc)} == {Role.PARAMETER}
    state = ptml.init(fc, seed=0)
    np.testing.assert_array_equal(state["fc/W"], np.full((3, 2), 0.5))
    np.testing.assert_array_equal(state["fc/b"], [2.0, 2.0])
    assert Linear("fc", n_in=3, n_out=2, bias=False).b is None
    assert [h.slot.address for h in ptml.slots(Linear(n_in=3, n_out=2, bias=False))] == ["Linear/W"]


def test_the_default_weight_has_glorots_variance():
    W = ptml.init(Linear("fc", n_in=200, n_out=300), seed=0)["fc/W"]
    assert abs(W.var() / (2 / 500) - 1) < 4 * np.sqrt(2 / W.size)


def test_float32_stays_float32(float32):
    fc = Linear("fc", n_in=3, n_out=2)
    X = Input("X", (None, 3))
    Y = fc(X)
    assert Y.type.dtype == "float32"
    assert [g.type.dtype for g in pytensor.grad(Y.sum(), [X, fc.W, fc.b])] == ["float32"] * 3


def test_a_wrong_width_is_refused_when_the_layer_is_called():
    with pytest.raises(ValueError, match=r"fc1 \(Linear\) takes \(\.\.\., 64 features\); got \(None, 63\)"):
        Linear("fc1", n_in=64, n_out=2)(Input("X", (None, 63)))
    with pytest.raises(ValueError, match=r"fc1 \(Linear\) takes \(\.\.\., 64 features\); got 0 axes: \(\)"):
        Linear("fc1", n_in=64, n_out=2)(pt.dscalar("x"))


def test_a_wrong_width_that_only_the_run_shows_is_refused_there():
    X = Input("X", (None, None))
    program = ptml.function([X], Linear("fc1", n_in=4, n_out=2)(X), seed=0, mode=PYTHON)
    assert program(np.ones((2, 4))).shape == (2, 2)
    with pytest.raises(ValueError, match=r"fc1 \(Linear\) takes \(\.\.\., 4 features\); got \(2, 3\)"):
        program(np.ones((2, 3)))


def test_integers_and_wider_floats_are_refused_with_the_cast_to_write(float32):
    fc = Linear("fc1", n_in=4, n_out=2)
    with pytest.raises(TypeError, match=r"fc1 \(Linear\) computes .*int64.*X\.astype\('float32'\)"):
        fc(Input("tokens", (None, 4), dtype="int64"))
    with pytest.raises(TypeError, match=r"fc1 \(Linear\) has float32 parameters; got .*float64"):
        fc(Input("X", (None, 4), dtype="float64"))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"n_in": 0, "n_out": 2}, ValueError, r"fc \(Linear\): n_in must be a positive integer; got 0"),
        ({"n_in": 2, "n_out": -1}, ValueError, r"fc \(Linear\): n_out must be a positive integer; got -1"),
        ({"n_in": 2.5, "n_out": 1}, TypeError, r"fc \(Linear\): n_in must be a positive integer; got 2.5"),
        ({"n_in": True, "n_out": 1}, TypeError, r"n_in must be a positive integer; got True"),
        ({"n_in": 2, "n_out": 1, "bias": "no"}, TypeError, r"bias must be True or False; got 'no'"),
        ({"n_in": 2, "n_out": 1, "bias_initializer": Zeros}, TypeError, r"Write bias_initializer=Zeros\(\)"),
        ({"n_in": 2, "n_out": 1, "weight_initializer": 0.1}, TypeError, r"must be an initializer.*got 0.1"),
        ({"n_in": 2, "nout": 1}, TypeError, r"Linear has no argument 'nout'. Did you mean 'n_out'"),
        ({"n_in": 2}, TypeError, r"n_out"),
    ],
)
def test_impossible_hyperparameters_are_refused_by_name(options, error, message):
    with pytest.raises(error, match=message):
        Linear("fc", **options)


def test_hyperparameters_by_position_are_refused_with_what_to_write():
    with pytest.raises(
        TypeError, match=r"got 3 positional arguments\. Write Linear\('fc', n_in=64, n_out=10\)"
    ):
        Linear("fc", 64, 10)
    with pytest.raises(
        TypeError, match=r"Linear's `name` must be a string; got 64\. Write Linear\(n_in=64, n_out=10\)"
    ):
        Linear(64, 10)


@pytest.mark.parametrize(
    "layer",
    [
        Linear(n_in=3, n_out=2),
        Linear("fc", n_in=3, n_out=2, bias=False),
        Linear("block/fc", n_in=np.int64(3), n_out=2, weight_initializer=HeNormal(mode="fan_out")),
    ],
    ids=repr,
)
def test_a_layer_is_a_value_and_its_slots_are_its_own(layer):
    before = layer.W
    for twin in (
        pickle.loads(pickle.dumps(layer)),
        copy.copy(layer),
        copy.deepcopy(layer),
        attrs.evolve(layer),
        eval(repr(layer), {**vars(linear), "HeNormal": HeNormal}),
    ):
        assert twin == layer
        assert hash(twin) == hash(layer)
        assert repr(twin) == repr(layer)
        assert twin.W is not before
        assert twin.W.slot.address == before.slot.address
    assert layer.W is before


def test_reprs_are_the_shortest_call_that_rebuilds():
    assert repr(Linear(n_in=3, n_out=2)) == "Linear(n_in=3, n_out=2)"
    assert repr(Linear("fc", n_in=3, n_out=2, bias=False)) == "Linear('fc', n_in=3, n_out=2, bias=False)"


def test_a_layer_cannot_be_changed():
    fc = Linear("fc", n_in=3, n_out=2)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        fc.n_in = 4
    assert attrs.evolve(fc, n_out=5) == Linear("fc", n_in=3, n_out=5)


def test_a_printed_graph_shows_the_layers_by_name():
    X = Input("X", (None, 3))
    text = pytensor.dprint(Linear("fc1", n_in=4, n_out=2)(Linear(n_in=3, n_out=4)(X)), file="str")
    assert "fc1:Linear" in text
    assert "fc1/W" in text
    assert "Linear/b" in text


def test_a_layer_called_twice_has_one_set_of_weights():
    fc = Linear("fc", n_in=2, n_out=2)
    X = Input("X", (None, 2))
    program = ptml.function([X], fc(fc(X)), seed=0, mode=PYTHON)
    assert list(program.state) == ["fc/W", "fc/b"]
    W = program.state["fc/W"]
    np.testing.assert_allclose(program(np.eye(2)), W @ W, rtol=1e-14)
