"""The product of features and a matrix: one product, whatever comes before the features."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.math import Dot

import ptml
from ptml.activations import GELU
from ptml.layers import Input, Linear, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.ops.products import features_times
from ptml.optim import compile_train, sgd


@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 5, 3), (0, 5, 3), (2, 0, 3), (2, 4, 5, 3)])
def test_it_is_the_product_of_each_row(shape):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=shape), rng.normal(size=(3, 4))
    X, W = pt.tensor("X", dtype="float64", shape=(None,) * len(shape)), pt.matrix("W", dtype="float64")
    function = pytensor.function([X, W], features_times(X, W), mode="FAST_COMPILE")
    np.testing.assert_allclose(function(x, w), x @ w, rtol=1e-14)


def test_what_is_known_of_the_shape_stays_known():
    X = pt.tensor("X", dtype="float64", shape=(None, 7, 3))
    assert features_times(X, pt.matrix("W", shape=(3, 5))).type.shape == (None, 7, 5)


@pytest.mark.usefixtures("float32")
def test_its_gradients_are_one_product_each_on_every_backend(backend):
    rng = np.random.default_rng(1)
    x, g = rng.standard_normal((2, 5, 3), "float32"), rng.standard_normal((2, 5, 4), "float32")
    fc = Linear("fc", n_in=3, n_out=4, bias=False)
    X, G = Input("X", (None, 5, 3)), Input("G", (None, 5, 4))
    Y = fc(X)
    gradients = pytensor.grad(None, [X, fc.W], known_grads={Y: G})
    program = ptml.function([X, G], [Y, *gradients], seed=0, backend=backend)
    w = np.asarray(program.state["fc/W"])
    expected = x @ w, g @ w.T, np.einsum("bti,bto->io", x, g)
    for found, wanted in zip(program(x, g), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_a_step_over_sequences_has_three_products_for_a_layer_and_no_node_twice():
    sizes = [(8, 16), (16, 8), (8, 8)]
    dense = [Linear(f"fc{k}", n_in=n_in, n_out=n_out) for k, (n_in, n_out) in enumerate(sizes)]
    net = Sequential(dense[0], GELU(), *dense[1:])
    loss, _ = supervised_loss(net(Input("X", shape=(None, 7, 8))), SquaredError())
    step = compile_train(loss, sgd(0.1), seed=0)
    nodes = step.function.maker.fgraph.apply_nodes
    # The gradient by the input of the first layer is not wanted.
    assert sum(isinstance(node.op, Dot) for node in nodes) == 8
    assert len({(node.op, *node.inputs) for node in nodes}) == len(nodes)
