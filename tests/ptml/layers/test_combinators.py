"""Sequential: a value that is a tuple of layers, and a layer that applies them in order."""

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
from ptml.activations import ReLU, Tanh
from ptml.layer import Layer
from ptml.layers import BatchNorm, Concatenate, Dropout, Flatten, Input, Linear, Sequential
from ptml_state import Role

PYTHON = Mode(linker="py", optimizer="fast_compile")


class Halves(Layer):
    """A layer that gives two tensors."""

    def build(self, X):
        return X[:, :2], X[:, 2:]


def _network():
    return Sequential(Linear("fc1", n_in=4, n_out=3), ReLU(), Linear("fc2", n_in=3, n_out=2))


def test_layers_are_applied_in_order():
    net = _network()
    X = Input("X", (None, 4))
    program = ptml.function([X], net(X), seed=0, mode=PYTHON)
    x = np.random.default_rng(0).normal(size=(5, 4))
    s = program.state
    wanted = np.maximum(x @ s["fc1/W"] + s["fc1/b"], 0) @ s["fc2/W"] + s["fc2/b"]
    np.testing.assert_allclose(program(x), wanted, rtol=1e-13)


def test_a_container_adds_nothing_to_addresses():
    inner = Sequential(Linear("b", n_in=3, n_out=3), Dropout("drop"), name="inner")
    net = Sequential(Linear("a", n_in=4, n_out=3), inner, BatchNorm("bn", n_in=3), name="net")
    addresses = [
        "a/W",
        "a/b",
        "b/W",
        "b/b",
        "drop/key",
        "bn/scale",
        "bn/b",
        "bn/running_mean",
        "bn/running_var",
    ]
    assert [handle.slot.address for handle in ptml.slots(net)] == addresses
    assert list(ptml.init(net, seed=0)) == addresses


def test_unnamed_layers_are_numbered_by_position():
    net = Sequential(Linear(n_in=2, n_out=2), Sequential(Linear(n_in=2, n_out=2)))
    assert list(ptml.init(net, seed=0)) == ["Linear_1/W", "Linear_1/b", "Linear_2/W", "Linear_2/b"]


def test_one_object_in_two_places_has_one_set_of_weights():
    tied = Linear("tied", n_in=2, n_out=2, bias=False)
    net = Sequential(tied, Tanh(), tied)
    X = Input("X", (None, 2))
    program = ptml.function([X], net(X), seed=0, mode=PYTHON)
    assert list(program.state) == ["tied/W"]
    W = program.state["tied/W"]
    np.testing.assert_allclose(program(np.eye(2)), np.tanh(W) @ W, rtol=1e-14)


def test_several_tensors_go_in_and_are_handed_on():
    A, B = Input("A", (None, 2)), Input("B", (None, 3))
    net = Sequential(Concatenate(), Halves(), Concatenate(axis=1))
    a, b = np.ones((4, 2)), np.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(ptml.function([A, B], net(A, B), mode=PYTHON)(a, b), np.hstack([a, b]))
    left, right = Sequential(Flatten(), Halves())(Input("X", (None, 4)))
    assert (left.type.ndim, right.type.ndim) == (2, 2)


def test_the_gradient_is_that_of_the_layers_by_hand():
    net = _network()
    X = Input("X", (None, 4))
    by_hand = X
    for layer in net:
        by_hand = layer(by_hand)
    wrt = ptml.slots(net, Role.PARAMETER)
    outputs = [*pytensor.grad((net(X) ** 2).sum(), wrt), *pytensor.grad((by_hand**2).sum(), wrt)]
    results = ptml.function([X], outputs, seed=0, mode=PYTHON)(np.random.default_rng(0).normal(size=(5, 4)))
    for got, wanted in zip(results[: len(wrt)], results[len(wrt) :], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-13)


def test_it_is_indexed_sliced_and_iterated_as_a_tuple():
    net = _network()
    assert len(net) == 3
    assert net[0] is net.layers[0]
    assert net[-1] is list(net)[2]
    tail = net[1:]
    assert tail == Sequential(*net.layers[1:])
    assert tail[1].W is net[2].W
    assert attrs.evolve(net, name="named")[:1].name == "named"
    with pytest.raises(IndexError, match="out of range"):
        net[3]
    with pytest.raises(ValueError, match="Sequential takes one layer or more; got none"):
        net[3:]


def test_its_repr_is_the_call_that_rebuilds_it_line_by_line():
    net = Sequential(
        Linear("fc1", n_in=64, n_out=128, bias=False), ReLU(), Linear("fc2", n_in=128, n_out=10), name="net"
    )
    assert repr(net) == (
        "Sequential(\n"
        "    Linear('fc1', n_in=64, n_out=128, bias=False),\n"
        "    ReLU(),\n"
        "    Linear('fc2', n_in=128, n_out=10),\n"
        "    name='net',\n"
        ")"
    )
    assert repr(Sequential(ReLU(), Tanh())) == "Sequential(ReLU(), Tanh())"
    nested = Sequential(net, Tanh())
    assert "    Sequential(\n        Linear('fc1'" in repr(nested)
    assert eval(repr(net)) == net
    assert eval(repr(nested)) == nested


def test_it_is_a_value_and_copies_have_slots_of_their_own():
    net = _network()
    assert net == _network()
    assert hash(net) == hash(_network())
    for twin in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        assert twin == net
        assert twin[0].W is not net[0].W
    # A shallow copy, and one with another name, share the layers and so their slots.
    for twin in (copy.copy(net), attrs.evolve(net, name="other")):
        assert twin[0].W is net[0].W
    assert attrs.evolve(net, layers=[ReLU()]) == Sequential(ReLU())


def test_a_printed_graph_shows_the_architecture():
    text = pytensor.dprint(attrs.evolve(_network(), name="net")(Input("X", (None, 4))), file="str")
    for name in ("net:Sequential", "fc1:Linear", "ReLU", "fc2:Linear", "fc1/W"):
        assert name in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ReLU(), pt.tanh), r"argument 1 is .*Wrap a function: Lambda\(function\)\."),
        ((ReLU,), r"argument 0 is <class 'ptml.activations.ReLU'>\. Write ReLU\(\)"),
        (([ReLU(), Tanh()],), r"argument 0 is \[ReLU\(\), Tanh\(\)\]\. Write Sequential\(\*layers\)"),
        (("net", ReLU()), r"argument 0 is 'net'\. Its name goes by keyword: name='net'"),
        ((ReLU(), None), r"argument 1 is None"),
    ],
)
def test_what_is_no_layer_is_refused_with_its_position(arguments, message):
    with pytest.raises(TypeError, match=message):
        Sequential(*arguments)


def test_without_layers_it_is_refused():
    with pytest.raises(ValueError, match="Sequential takes one layer or more; got none"):
        Sequential()
    with pytest.raises(TypeError, match=r"Sequential has no argument 'layer'\. Did you mean 'layers'"):
        Sequential(layer=ReLU())


def test_an_error_inside_names_the_layer_and_the_container():
    net = Sequential(Linear("fc1", n_in=4, n_out=3), Linear("fc2", n_in=4, n_out=2), name="net")
    with pytest.raises(
        ValueError, match=r"fc2 \(Linear\) takes \(\.\.\., 4 features\); got \(None, 3\)"
    ) as error:
        net(Input("X", (None, 4)))
    assert error.value.__notes__ == ["while calling fc2 (Linear)", "while calling net (Sequential)"]
