"""Residual connections and parallel branches: shapes that do not go together, addresses, and values."""

from __future__ import annotations

import copy
import pickle

import attrs
import numpy as np
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.activations import ReLU, Tanh
from ptml.layer import Layer
from ptml.layers import Input, Linear, Parallel, Residual, Sequential

PYTHON = Mode(linker="py", optimizer="fast_compile")


class Halves(Layer):
    """A layer that gives two tensors."""

    def build(self, X):
        return X[:, :2], X[:, 2:]


def test_nothing_is_broadcast_into_a_residual():
    message = (
        r"res \(Residual\) takes layers whose output has the shape of what it is added to; got "
        r"\(None, 1\) and \(None, 4\), which differ along axis -1"
    )
    with pytest.raises(ValueError, match=message):
        Residual(Linear("fc", n_in=4, n_out=1), name="res")(Input("X", (None, 4)))
    with pytest.raises(ValueError, match=r"Residual takes .* got \(None,\) and \(None, 2\)\."):
        Residual(_Sum())(Input("X", (None, 2)))
    X = Input("X", (None, None))
    program = ptml.function([X], Residual(_First(), name="res")(X), mode=PYTHON)
    with pytest.raises(ValueError, match=r"res \(Residual\) takes .* got \(3, 1\) and \(3, 2\)"):
        program(np.ones((3, 2)))
    np.testing.assert_array_equal(program(np.ones((3, 1))), np.full((3, 1), 2.0))


class _Sum(Layer):
    def build(self, X):
        return X.sum(axis=-1)


class _First(Layer):
    def build(self, X):
        return X[:, : X.shape[1] // X.shape[1]]


def test_layers_of_several_outputs_are_refused_where_one_is_wanted():
    with pytest.raises(ValueError, match="Residual takes layers that give one tensor each; Halves gives 2"):
        Residual(Halves())(Input("X", (None, 4)))
    with pytest.raises(ValueError, match="Parallel takes layers that give one tensor each; Halves gives 2"):
        Parallel(Halves(), Tanh())(Input("X", (None, 4)))


def test_branches_give_their_outputs_in_order_as_a_tuple():
    X = Input("X", (None, 4))
    outputs = Parallel(Halves(), Tanh(), combine="tuple")(X)
    x = np.arange(8.0).reshape(2, 4)
    for got, wanted in zip(
        ptml.function([X], list(outputs), mode=PYTHON)(x), (x[:, :2], x[:, 2:], np.tanh(x)), strict=True
    ):
        np.testing.assert_array_equal(got, wanted)


def test_branches_are_joined_along_another_axis():
    X = Input("X", (None, 2))
    program = ptml.function([X], Parallel(Tanh(), ReLU(), axis=0)(X), mode=PYTHON)
    x = np.array([[-1.0, 2.0]])
    np.testing.assert_array_equal(program(x), np.vstack([np.tanh(x), [[0.0, 2.0]]]))


@pytest.mark.parametrize("combine", ["add", "mean", "multiply"])
def test_nothing_is_broadcast_between_branches(combine):
    net = Parallel(Linear("a", n_in=3, n_out=2), Linear("b", n_in=3, n_out=1), combine=combine, name="both")
    with pytest.raises(ValueError, match=r"both \(Parallel\) takes branches whose outputs have one shape"):
        net(Input("X", (None, 3)))


def test_the_shapes_of_joined_branches_must_go_together():
    net = Parallel(Linear("a", n_in=3, n_out=2), _Sum(), name="both")
    with pytest.raises(ValueError, match=r"both \(Parallel\) takes tensors of as many axes each"):
        net(Input("X", (None, 3)))
    with pytest.raises(ValueError, match=r"both \(Parallel\) has axis=2; got a tensor of 2 axes"):
        Parallel(Tanh(), axis=2, name="both")(Input("X", (None, 3)))


def test_containers_add_nothing_to_addresses_and_unnamed_layers_are_numbered_through_them():
    net = Sequential(
        Linear(n_in=2, n_out=2),
        Residual(Linear(n_in=2, n_out=2), shortcut=Linear("short", n_in=2, n_out=2), name="res"),
        Parallel(Linear(n_in=2, n_out=1), Linear("named", n_in=2, n_out=1), name="both"),
    )
    assert list(ptml.init(net, seed=0)) == [
        *("Linear_1/W", "Linear_1/b", "Linear_2/W", "Linear_2/b"),
        *("short/W", "short/b", "Linear_3/W", "Linear_3/b", "named/W", "named/b"),
    ]


def test_one_object_in_two_branches_has_one_set_of_weights():
    fc = Linear("fc", n_in=2, n_out=2)
    assert list(ptml.init(Parallel(fc, Sequential(fc, Tanh())), seed=0)) == ["fc/W", "fc/b"]


@pytest.mark.parametrize(
    "net",
    [
        Residual(Linear("fc", n_in=2, n_out=2), Tanh(), shortcut=Tanh(), name="res"),
        Parallel(Tanh(), ReLU(), combine="add", axis=1, name="both"),
    ],
)
def test_they_are_values(net):
    for twin in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net), eval(repr(net)), attrs.evolve(net)):
        assert twin == net
        assert repr(twin) == repr(net)
    assert attrs.evolve(net, name="other") != net


def test_parts_are_selected_and_replaced():
    net = Residual(Linear("fc", n_in=2, n_out=2), Tanh())
    assert ptml.select(net, Tanh) == [Tanh()]
    assert ptml.replace(net, Tanh, ReLU()) == Residual(Linear("fc", n_in=2, n_out=2), ReLU())


@pytest.mark.parametrize("kind", [Residual, Parallel])
def test_what_is_no_layer_is_refused_with_its_position(kind):
    with pytest.raises(TypeError, match=rf"{kind.__name__} takes layers; its argument 1 is 'net'"):
        kind(Tanh(), "net")
    with pytest.raises(TypeError, match=rf"argument 0 is \[Tanh\(\)\]\. Write {kind.__name__}\(\*layers\)"):
        kind([Tanh()])
    with pytest.raises(ValueError, match=rf"{kind.__name__} takes one layer or more; got none"):
        kind()


def test_options_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"Parallel: combine must be one of 'concatenate', .*; got 'sum'"):
        Parallel(Tanh(), combine="sum")
    with pytest.raises(TypeError, match=r"Residual: shortcut must be a layer or None; got 3"):
        Residual(Tanh(), shortcut=3)
