"""Copies of a layer: their addresses, and that each is its own."""

from __future__ import annotations

import numpy as np
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.activations import PReLU, Tanh
from ptml.layers import Dropout, Input, Linear, Repeat, Residual, Sequential
from ptml_state import where

PYTHON = Mode(linker="py", optimizer="fast_compile")


class Pair(ptml.Layer):
    """A layer that builds layers of its own."""

    n: int

    @ptml.sublayer
    def inner(self):
        return Linear(f"{self.name}/inner", n_in=self.n, n_out=self.n, bias=False)

    def build(self, X):
        return self.inner(X)


def _addresses(network):
    return list(ptml.init(network, seed=0))


def test_the_copies_are_numbered_after_the_layers_name():
    assert _addresses(Repeat(2, Linear("fc", n_in=2, n_out=2))) == ["fc0/W", "fc0/b", "fc1/W", "fc1/b"]
    assert _addresses(Repeat(2, Linear("fc", n_in=2, n_out=2, bias=False), name="block/fc")) == [
        "block/fc0/W",
        "block/fc1/W",
    ]
    assert _addresses(Repeat(1, Linear(n_in=2, n_out=2))) == ["Linear0/W", "Linear0/b"]


def test_what_a_copy_holds_is_named_below_it():
    inside = Sequential(
        Residual(Linear("fc", n_in=2, n_out=2, bias=False), Dropout(p=0.1)), PReLU(), PReLU(), Tanh()
    )
    assert _addresses(Repeat(2, inside, name="block")) == [
        f"block{k}/{leaf}" for k in range(2) for leaf in ("fc/W", "Dropout/key", "PReLU_1/W", "PReLU_2/W")
    ]


def test_layers_that_a_layer_builds_and_names_below_its_own_follow():
    assert _addresses(Repeat(2, Pair("pair", n=3))) == ["pair0/inner/W", "pair1/inner/W"]
    assert _addresses(
        Repeat(2, Sequential(Linear("block/fc", n_in=2, n_out=2, bias=False), name="block"))
    ) == [
        "block0/fc/W",
        "block1/fc/W",
    ]
    assert _addresses(Repeat(2, Sequential(Pair(n=3)), name="block")) == [
        "block0/Pair/inner/W",
        "block1/Pair/inner/W",
    ]


def test_an_object_at_two_places_is_one_object_in_each_copy():
    tied = Linear("tied", n_in=2, n_out=2, bias=False)
    net = Repeat(2, Sequential(tied, Tanh(), tied), name="block")
    assert net[0][0] is net[0][2]
    assert net[0][0] is not net[1][0]
    assert _addresses(net) == ["block0/tied/W", "block1/tied/W"]


def test_copies_start_from_values_of_their_own_and_are_applied_in_order():
    net = Repeat(3, Linear("fc", n_in=2, n_out=2, bias=False))
    X = Input("X", (None, 2))
    program = ptml.function([X], net(X), seed=0, mode=PYTHON)
    W = [program.state[f"fc{k}/W"] for k in range(3)]
    assert not np.array_equal(W[0], W[1])
    np.testing.assert_allclose(program(np.eye(2)), W[0] @ W[1] @ W[2], rtol=1e-12)


def test_the_template_stays_as_it_is_and_copies_are_ordinary_layers():
    template = Sequential(Linear("fc", n_in=2, n_out=2), Dropout("drop"), name="block")
    before = repr(template)
    net = Repeat(2, template)
    assert repr(template) == before
    assert isinstance(net, Sequential)
    assert net == Sequential(
        *(
            Sequential(Linear(f"block{k}/fc", n_in=2, n_out=2), Dropout(f"block{k}/drop"), name=f"block{k}")
            for k in range(2)
        )
    )
    assert [layer.name for layer in ptml.select(net, where("block1/*"))] == ["block1/fc", "block1/drop"]
    assert ptml.from_config(ptml.to_config(net)) == net


def test_what_cannot_be_repeated_is_refused():
    with pytest.raises(ValueError, match=r"the number of copies first, a positive integer; got 0"):
        Repeat(0, Tanh())
    with pytest.raises(TypeError, match=r"got Tanh\(\)"):
        Repeat(Tanh(), 3)
    with pytest.raises(TypeError, match="Repeat copies a layer; got 3"):
        Repeat(3, 3)
