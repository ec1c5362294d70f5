"""A function as a layer."""

from __future__ import annotations

import pickle

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.activations import Tanh
from ptml.layers import Input, Lambda, Linear, Sequential

PYTHON = Mode(linker="py", optimizer="fast_compile")


def _halves(X):
    return X[:, :2], X[:, 2:]


def test_it_is_the_same_value_only_for_the_same_function():
    assert Lambda(_halves) == Lambda(_halves)
    assert Lambda(lambda X: X) != Lambda(lambda X: X)
    assert Lambda(_halves, name="a") != Lambda(_halves, name="b")
    assert repr(Lambda(_halves, name="a")) == "Lambda(_halves, name='a')"
    assert repr(Lambda(_halves)) == "Lambda(_halves)"
    assert pickle.loads(pickle.dumps(Lambda(_halves, name="a"))) == Lambda(_halves, name="a")


def test_it_takes_and_gives_several_tensors():
    A, B = Input("A", (None, 2)), Input("B", (None, 2))
    net = Sequential(Lambda(lambda a, b: pt.concatenate([a, b], axis=1)), Lambda(_halves))
    a, b = np.ones((3, 2)), np.zeros((3, 2))
    for got, wanted in zip(ptml.function([A, B], list(net(A, B)), mode=PYTHON)(a, b), (a, b), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_slots_that_the_function_reads_are_inputs_of_the_program():
    fc = Linear("fc", n_in=2, n_out=3, bias=False)
    X = Input("X", (None, 3))
    program = ptml.function([X], Lambda(lambda X: X @ fc.W.T)(X), seed=0, mode=PYTHON)
    assert list(program.state) == ["fc/W"]
    np.testing.assert_allclose(program(np.eye(3)), program.state["fc/W"].T)


def test_a_config_refuses_it_by_the_functions_name():
    with pytest.raises(ptml.ConfigError, match=r"module\.layers\[1\]\.function: it is the function _halves"):
        ptml.to_config(Sequential(Tanh(), Lambda(_halves)))


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="Lambda: function must be a function of tensors; got 3"):
        Lambda(3)
    with pytest.raises(TypeError, match=r"got the layer Tanh\(\)\. Use it as it stands"):
        Lambda(Tanh())
    with pytest.raises(TypeError, match=r"got the layer Tanh\(\)\. Use it as it stands"):
        Lambda(Tanh)


def test_an_error_inside_names_the_layer():
    with pytest.raises(ValueError, match="no such thing") as error:
        Lambda(_fails, name="broken")(Input("X", (None, 3)))
    assert error.value.__notes__ == ["while calling broken (Lambda)"]


def _fails(X):
    raise ValueError("no such thing")
