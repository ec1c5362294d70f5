"""Flattening: the nested graphs of layers in the place of their calls, and which layers a graph calls."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import apply_ancestors, graph_inputs

import ptml
from ptml.flatten import calls_in, flatten, flattened_graph, is_marked
from ptml.layer import LayerGradient, LayerOp
from ptml.layers import Dropout, Input, Linear, Sequential
from ptml.optim import get_gradients

PYTHON = Mode(linker="py", optimizer="fast_compile")


class Swapped(ptml.Layer):
    """Calls its layers in another order than it lists them."""

    first: ptml.Layer
    second: ptml.Layer

    def build(self, X):
        return self.first(self.second(X))


def swapped():
    """Give an unnamed network whose slots are made in another order than their positions."""
    net = Swapped(first=Linear(n_in=2, n_out=2), second=Sequential(Linear(n_in=2, n_out=2), Dropout(p=0.1)))
    assert net.second[0].W is not net.first.W
    return net


def nested(function, X):
    """Wrap a graph in a nested graph of the user's own."""
    inner = X.type()
    output = function(inner)
    roots = [r for r in graph_inputs([output]) if r is not inner and not isinstance(r, Constant)]
    return OpFromGraph([inner, *roots], [output])(X, *roots)


@pytest.fixture
def X():
    return Input("X", (None, 2))


def kinds(outputs):
    return {type(node.op) for node in apply_ancestors(outputs)}


def test_flattening_leaves_no_call_and_the_same_roots(X):
    net = Sequential(Linear("a", n_in=2, n_out=2), Sequential(Linear("b", n_in=2, n_out=2)))
    [flat] = flatten([net(X).sum()])
    assert LayerOp not in kinds([flat])
    roots = [root for root in graph_inputs([flat]) if not isinstance(root, Constant)]
    assert set(roots) == {X, *ptml.slots(net)}


def test_a_flattened_graph_computes_the_same(X):
    net = Sequential(Linear("a", n_in=2, n_out=2), Linear("b", n_in=2, n_out=2))
    Y = net(X)
    program = ptml.function([X], [Y, *flatten([Y])], seed=0, mode=PYTHON)
    one, other = program(np.arange(6.0).reshape(3, 2))
    np.testing.assert_array_equal(one, other)


def test_the_gradient_of_a_flattened_loss_is_the_losss(X):
    fc = Linear("fc", n_in=2, n_out=2)
    loss = (fc(X) ** 2).sum()
    [flat] = flatten([loss])
    program = ptml.function([X], [pytensor.grad(loss, fc.W), pytensor.grad(flat, fc.W)], seed=0, mode=PYTHON)
    one, other = program(np.arange(6.0).reshape(3, 2))
    np.testing.assert_allclose(one, other, rtol=1e-14)


def test_gradients_of_calls_are_flattened_too(X):
    gradient = pytensor.grad((Linear("fc", n_in=2, n_out=2)(X) ** 2).sum(), X)
    assert LayerGradient in kinds([gradient])
    assert not {LayerOp, LayerGradient} & kinds(flatten([gradient]))


def test_roots_that_are_outputs_are_kept(X):
    fc = Linear("fc", n_in=2, n_out=2)
    assert flatten([X, fc.W]) == [X, fc.W]


def test_roots_come_in_the_order_asked_for(X):
    fc = Linear("fc", n_in=2, n_out=2)
    graph = flattened_graph([fc(X)], [fc.b, X, fc.W])
    assert list(graph.inputs) == [fc.b, X, fc.W]


def test_a_users_nested_graph_is_opened_only_where_layers_are_inside(X):
    plain = nested(lambda Z: 2 * Z, X)
    layered = nested(Linear("fc", n_in=2, n_out=2), X)
    assert not is_marked(plain.owner.op)
    assert is_marked(layered.owner.op)
    assert OpFromGraph in kinds(flatten([plain]))
    assert OpFromGraph not in kinds(flatten([layered]))


def test_the_outermost_calls_are_found_in_the_order_of_the_calls(X):
    a, b, c = (Linear(name, n_in=2, n_out=2) for name in "abc")
    later = b(X)
    assert calls_in([c(a(X)) + later]) == [b, a, c]
    net = Sequential(a, b)
    assert calls_in([net(X)]) == [net]


def test_a_layer_is_listed_once_and_under_the_network_that_has_it(X):
    a, b = Linear("a", n_in=2, n_out=2), Linear("b", n_in=2, n_out=2)
    net = Sequential(a, b)
    early = b(X)
    assert calls_in([b(early), net(X)]) == [net]
    assert calls_in([a(a(X))]) == [a]


WAYS = {
    "plain": lambda net, X: net(X),
    "flattened": lambda net, X: flatten([net(X)])[0],
    "in a nested graph": lambda net, X: nested(net, X),
    "in a nested graph of a nested graph": lambda net, X: nested(lambda Z: nested(net, Z), X),
    "in a loop": lambda net, X: ptml.scan(lambda x: net(x), sequences=X),
    "in one iteration": lambda net, X: ptml.scan(lambda: net(X), n_steps=1)[0],
    "in a loop of a loop": lambda net, X: ptml.scan(
        lambda: ptml.scan(lambda x: net(x), sequences=X), n_steps=2
    )[-1],
    "with its gradient": lambda net, X: pytensor.grad((net(X) ** 2).sum(), X),
    "with a gradient of a flattened graph": lambda net, X: get_gradients((net(X) ** 2).sum(), [net.first.W])[
        0
    ],
    "with the gradient of a loop": lambda net, X: pytensor.grad(
        (ptml.scan(lambda x: net(x), sequences=X) ** 2).sum(), net.first.W
    ),
    "with a layer of its own called before": lambda net, X: net.second[0](X) + net(X),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_graph_and_its_network_give_one_numbering(X, way):
    net = swapped()
    graph = WAYS[way](net, X)
    assert calls_in([graph]) == [net]
    from_network = dict(zip(ptml.slots(net), ptml.init(net, seed=0), strict=True))
    from_graph = dict(zip(ptml.slots(graph), ptml.init(graph, seed=0), strict=True))
    assert from_graph.items() <= from_network.items()
    assert net.first.W in from_graph


@pytest.mark.parametrize("way", ["plain", "in a nested graph", "in a loop"])
def test_a_state_of_a_network_means_the_same_to_a_rebuilt_one(X, way):
    state = ptml.init(swapped(), seed=0)
    graph = WAYS[way](swapped(), X)
    predict = ptml.compile_predict(graph, inputs=[X], state=state, compile_kwargs={"mode": PYTHON})
    x = np.arange(6.0).reshape(3, 2)
    wanted = (x @ state["Linear_2/W"] + state["Linear_2/b"]) @ state["Linear_1/W"] + state["Linear_1/b"]
    np.testing.assert_allclose(predict(x), wanted, rtol=1e-13)


def test_marks_in_a_loop_are_seen(X):
    loop = ptml.scan(lambda x: Dropout("d", p=0.5)(x), sequences=X)
    bare = pytensor.scan(lambda x: 2 * x, sequences=X, return_updates=False)
    assert is_marked(loop.owner.op)
    assert not is_marked(bare.owner.op)
    assert pt.exp(bare).owner is not None
