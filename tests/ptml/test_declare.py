"""Declaring slots and sublayers: made when they are first read, and one for each module object."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import attrs
import numpy as np
import pytensor
import pytest

import ptml
from ptml.declare import FreshKey, own_slots, own_sublayers
from ptml.initializers import Ones, Zeros
from ptml.layers import Linear, Sequential
from ptml_state import Role


class Gain(ptml.Layer):
    n: int
    shift: bool = False

    @ptml.slot
    def scale(self):
        """The gain."""
        return ptml.parameter((self.n,), Ones())

    @ptml.slot
    def offset(self):
        return ptml.parameter((self.n,), Zeros()) if self.shift else None

    def build(self, X):
        return X * self.scale


class Tracked(Gain):
    @ptml.slot
    def seen(self):
        return ptml.statistic((), Zeros(), dtype="int64")

    @ptml.slot
    def key(self):
        return ptml.generator()


class Twin(ptml.Layer):
    n: int
    both: bool = True

    @ptml.sublayer
    def left(self):
        """The left one."""
        return Linear(f"{self.name}/left", n_in=self.n, n_out=self.n)

    @ptml.sublayer
    def right(self):
        return Linear(f"{self.name}/right", n_in=self.n, n_out=self.n) if self.both else None

    def build(self, X):
        return self.left(X) if self.right is None else self.left(X) * self.right(X)


def test_a_slot_is_made_once_and_belongs_to_its_object():
    gain = Gain("gain", n=3)
    assert "scale" not in vars(gain)
    assert gain.scale is gain.scale
    assert gain.scale.slot.owner is gain
    assert gain.scale is not Gain("gain", n=3).scale


def test_what_is_declared_says_role_shape_and_dtype():
    slots = {handle.slot.name: handle.slot for handle in own_slots(Tracked("t", n=3))}
    told = {name: (slot.role, slot.shape, slot.dtype) for name, slot in slots.items()}
    assert told == {
        "scale": (Role.PARAMETER, (3,), "float64"),
        "seen": (Role.STATISTIC, (), "int64"),
        "key": (Role.GENERATOR, (4,), "uint32"),
    }


def test_a_slot_that_is_declared_as_none_is_none():
    assert Gain("gain", n=3).offset is None
    assert list(ptml.init(Gain("gain", n=3, shift=True), seed=0)) == ["gain/scale", "gain/offset"]


def test_slots_are_listed_as_written_those_of_the_base_first():
    assert [handle.slot.name for handle in own_slots(Tracked("t", n=3, shift=True))] == [
        "scale",
        "offset",
        "seen",
        "key",
    ]


def test_a_subclass_may_declare_a_slot_anew_or_leave_it_out():
    class Doubled(Gain):
        @ptml.slot
        def scale(self):
            return ptml.parameter((2 * self.n,), Ones())

    class Fixed(Gain):
        scale = 2.0

    assert Doubled("d", n=3).scale.slot.shape == (6,)
    assert own_slots(Fixed("f", n=3)) == []


def test_the_dtype_is_floatx_of_when_the_slot_is_first_read():
    with pytensor.config.change_flags(floatX="float32"):
        gain = Gain("gain", n=3)
        handle = gain.scale
    assert gain.scale is handle
    assert handle.slot.dtype == "float32"
    assert Gain("gain", n=3).scale.slot.dtype == "float64"


def test_a_slot_of_the_class_is_the_declaration_with_its_docstring():
    assert isinstance(Gain.scale, ptml.slot)
    assert Gain.scale.__doc__ == "The gain."
    assert Twin.left.__doc__ == "The left one."


def test_what_returns_no_declaration_is_told_what_to_return():
    class Wrong(ptml.Layer):
        @ptml.slot
        def W(self):
            return np.zeros(3)

    with pytest.raises(TypeError, match=r"Wrong\.W returned array.* returns parameter\(shape, initializer\)"):
        Wrong("w").W  # noqa: B018


def test_a_shape_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="a tuple of whole numbers"):
        Gain("gain", n=-1).scale  # noqa: B018


def test_handles_cannot_be_replaced():
    gain = Gain("gain", n=3)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        gain.scale = 2.0


def test_a_fresh_key_has_two_random_words_and_no_calls():
    key = FreshKey()(np.random.default_rng(0), (4,), "uint32")
    assert key.dtype == np.uint32
    assert key[:2].all()
    assert not key[2:].any()


def test_a_sublayer_is_built_once_under_its_layers_name():
    twin = Twin("twin", n=2)
    assert twin.left is twin.left
    assert [layer.name for layer in own_sublayers(twin)] == ["twin/left", "twin/right"]
    assert own_sublayers(Twin("twin", n=2, both=False)) == [Linear("twin/left", n_in=2, n_out=2)]


def test_sublayers_under_an_unnamed_layer_are_numbered_with_it():
    one, two = Twin(n=1), Twin(n=1)
    addresses = ["Twin_1/left", "Twin_1/right", "Twin_2/left", "Twin_2/right"]
    assert list(ptml.init(Sequential(one, two), seed=0)) == [f"{a}/{s}" for a in addresses for s in "Wb"]
    assert next(iter(ptml.init(one, seed=0))) == "Twin/left/W"


def test_sublayers_used_alone_are_numbered_by_what_builds_them():
    one, two = Twin(n=2), Twin(n=2)
    X = ptml.layers.Input("X", (None, 2))
    graphs = [two.right(X), one.right(X), two.left(X)]
    placed = dict(zip(ptml.init(graphs, seed=0), ptml.slots(graphs), strict=True))
    assert [address for address in placed if address.endswith("W")] == [
        "Twin_1/left/W",
        "Twin_1/right/W",
        "Twin_2/right/W",
    ]
    assert placed["Twin_1/left/W"] is two.left.W
    assert placed["Twin_2/right/W"] is one.right.W


def test_a_copied_layer_builds_sublayers_of_its_own():
    twin = Twin("twin", n=2)
    left = twin.left
    for again in (copy.copy(twin), copy.deepcopy(twin), pickle.loads(pickle.dumps(twin)), attrs.evolve(twin)):
        assert again.left == left
        assert again.left is not left
        assert again.left.W is not left.W


class Deep(ptml.Layer):
    """Builds as many layers as it is told."""

    n: int
    depth: int

    @ptml.sublayer
    def layers(self):
        names = (f"{self.name}/layer{k}" for k in range(self.depth))
        return [Linear(name, n_in=self.n, n_out=self.n, bias=False) for name in names]

    def build(self, X):
        for layer in self.layers:
            X = layer(X)
        return X


def test_a_layer_may_build_a_tuple_of_layers():
    deep = Deep("deep", n=2, depth=2)
    assert deep.layers is deep.layers
    assert own_sublayers(deep) == list(deep.layers)
    assert list(ptml.init(deep, seed=0)) == ["deep/layer0/W", "deep/layer1/W"]
    assert own_sublayers(Deep("none", n=2, depth=0)) == []
    pair = Deep(n=2, depth=1), Deep(n=2, depth=1)
    assert list(ptml.init(pair, seed=0)) == ["Deep_1/layer0/W", "Deep_2/layer0/W"]
    alone = pickle.loads(pickle.dumps((deep, deep.layers[1])))
    assert alone[1] is alone[0].layers[1]
    X = ptml.layers.Input("X", (None, 2))
    graph = pickle.loads(pickle.dumps(deep(X)))
    assert [h.slot.owner.name for h in ptml.slots(graph)] == ["deep/layer0", "deep/layer1"]


def test_a_copied_sublayer_is_the_copied_layers():
    left = pickle.loads(pickle.dumps(Twin(n=2).left))
    assert left == Twin(n=2).left
    assert left.W.slot.address == "Twin/left/W"


ELSEWHERE = """
import pickle, sys
import ptml
from ptml.layers import Linear

class Twin(ptml.Layer):
    n: int
    @ptml.sublayer
    def left(self):
        return Linear(f"{self.name}/left", n_in=self.n, n_out=self.n)
    @ptml.sublayer
    def right(self):
        return Linear(f"{self.name}/right", n_in=self.n, n_out=self.n)
    def build(self, X):
        return self.left(X) * self.right(X)

if sys.argv[1] == "write":
    X = ptml.layers.Input("X", (None, 2))
    one, two = Twin(n=2), Twin(n=2)
    y = two(one(X))
    sys.stdout.buffer.write(pickle.dumps(y))
else:
    y = pickle.loads(sys.stdin.buffer.read())
    print(list(ptml.init(y, seed=0)))
"""


def test_a_pickled_graph_of_sublayers_is_numbered_alike_in_another_process():
    def run(what, **given):
        return subprocess.run(
            [sys.executable, "-c", ELSEWHERE, what], capture_output=True, check=True, **given
        ).stdout

    told = eval(run("read", input=run("write")))
    assert told == list(ptml.init((Twin(n=2), Twin(n=2)), seed=0))
