"""Modules: frozen values that print, compare, hash, copy and pickle by their fields."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import attrs
import numpy as np
import pytest

import ptml
from ptml.initializers import Ones
from ptml.layers import Dropout, Linear, Sequential
from ptml.module import Module
from ptml.optim import adam, chain, clip_by_global_norm


class Scale(Module):
    factors: tuple[float, ...]
    centre: bool = False


class Curve(Module, kw_only=False):
    start: float
    end: float = 0.0
    shape: Callable[[float], float] = abs


class Steeper(Curve, kw_only=False):
    power: int = 2


class Holder(Module):
    inner: Module
    others: tuple[Module, ...] = ()
    notes: tuple[str, ...] = attrs.field(factory=tuple)


class Halves(ptml.Layer):
    factor: float = 0.5

    def build(self, X):
        return self.factor * X


def test_a_subclass_is_frozen_as_it_stands():
    scale = Scale(factors=(1.0, 2.0))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        scale.centre = True
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        del scale.centre
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        scale.another = 1


def test_lists_arrays_and_numpy_numbers_become_plain_values():
    assert Scale(factors=[1.0, 2.0]).factors == (1.0, 2.0)
    assert Scale(factors=np.array([[1.0], [2.0]])).factors == ((1.0,), (2.0,))
    centre = Scale(factors=(), centre=np.bool_(True)).centre
    assert centre is True
    assert type(Curve(np.float32(0.5)).start) is float
    assert Holder(inner=Scale(factors=()), notes=["a", ["b"]]).notes == ("a", ("b",))


def test_equal_fields_make_equal_values_with_equal_hashes():
    one, other = Scale(factors=[1.0, 2.0]), Scale(factors=(1.0, 2.0), centre=False)
    assert one == other
    assert hash(one) == hash(other)
    assert one != Scale(factors=(1.0, 3.0))
    assert len({one, other, Scale(factors=())}) == 2


def test_values_of_two_classes_are_not_equal():
    assert Curve(1.0) != Steeper(1.0)
    assert Scale(factors=()) != ()


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (Scale(factors=(1.0,)), "Scale(factors=(1.0,))"),
        (Scale(factors=(), centre=True), "Scale(factors=(), centre=True)"),
        (Curve(1.0), "Curve(1.0)"),
        (Curve(1.0, 2.0), "Curve(1.0, 2.0)"),
        (Curve(1.0, shape=max), "Curve(1.0, shape=max)"),
        (Steeper(1.0, power=3), "Steeper(1.0, power=3)"),
        (Holder(inner=Curve(1.0)), "Holder(inner=Curve(1.0))"),
        (Halves(), "Halves()"),
        (Halves("h", factor=0.25), "Halves('h', factor=0.25)"),
    ],
)
def test_a_repr_is_the_shortest_call_that_rebuilds_the_value(module, text):
    assert repr(module) == text
    assert eval(text) == module


def test_a_default_of_another_type_is_shown():
    assert repr(Curve(1.0, 0)) == "Curve(1.0, 0)"
    assert repr(Scale(factors=(), centre=0)) == "Scale(factors=(), centre=0)"


def test_a_value_is_evolved_into_a_new_one():
    scale = Scale(factors=(1.0,))
    assert attrs.evolve(scale, centre=True) == Scale(factors=(1.0,), centre=True)
    assert attrs.evolve(scale, factors=[3.0]).factors == (3.0,)
    assert scale == Scale(factors=(1.0,))


@pytest.mark.parametrize(
    "module",
    [
        Scale(factors=(1.0,)),
        Steeper(1.0, power=3),
        Holder(inner=Curve(1.0), others=[Scale(factors=())]),
        Halves(),
        Halves("h"),
        Sequential(Linear(n_in=2, n_out=3), Dropout("drop", p=0.1)),
        chain(clip_by_global_norm(1.0), adam(1e-3)),
    ],
)
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), attrs.evolve]
)
def test_copies_are_equal_values(module, copied):
    again = copied(module)
    assert again == module
    assert hash(again) == hash(module)
    assert repr(again) == repr(module)
    assert type(again) is type(module)


def test_an_unnamed_layer_stays_unnamed_through_copies():
    layers = [
        pickle.loads(pickle.dumps(Linear(n_in=2, n_out=2))),
        attrs.evolve(Linear(n_in=3, n_out=2), n_in=2),
    ]
    assert list(ptml.init(layers, seed=0)) == ["Linear_1/W", "Linear_1/b", "Linear_2/W", "Linear_2/b"]


def test_a_typo_in_a_keyword_is_named_with_its_nearest_match():
    with pytest.raises(
        TypeError, match=r"Scale has no argument 'center'\. Did you mean 'centre'\? .* centre, factors"
    ):
        Scale(factors=(), center=True)
    with pytest.raises(TypeError, match=r"Linear has no argument 'n_output'\. Did you mean 'n_out'\?"):
        Linear("fc", n_in=2, n_output=3)
    with pytest.raises(TypeError, match=r"Curve has no argument 'zzz'\. Its arguments are end, shape, start"):
        Curve(1.0, zzz=2)


def test_fields_go_by_keyword_unless_the_class_says_otherwise():
    with pytest.raises(TypeError, match="positional argument"):
        Scale((1.0,))
    assert Curve(1.0, 2.0).end == 2.0


@pytest.mark.parametrize("options", [{}, {"slots": False}])
def test_a_decorator_that_changes_nothing_is_allowed(options):
    @attrs.frozen(kw_only=True, **options)
    class Decorated(ptml.Layer):
        n: int
        factors: tuple[float, ...] = (2.0,)

        @ptml.slot
        def gain(self):
            return ptml.parameter((self.n,), Ones())

    layer = Decorated("d", n=3, factors=[1.0])
    assert layer == Decorated("d", n=3, factors=(1.0,))
    assert hash(layer) == hash(attrs.evolve(layer))
    assert copy.deepcopy(layer) == layer
    assert repr(Decorated("d", n=3)) == "Decorated('d', n=3)"
    assert Decorated("d", n=3).factors == (2.0,)
    assert list(ptml.init(layer, seed=0)) == ["d/gain"]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        layer.n = 4
    with pytest.raises(TypeError, match="Decorated has no argument 'm'"):
        Decorated("d", m=3)


def test_a_decorator_that_takes_fields_by_position_is_refused():
    with pytest.raises(
        TypeError, match=r"Loose takes factor by position\. A subclass of Module .* leave the decorator"
    ):

        @attrs.frozen
        class Loose(Module):
            factor: float


def test_a_subclass_adds_fields_to_those_of_its_base():
    steeper = Steeper(1.0, 2.0, power=3)
    assert (steeper.start, steeper.end, steeper.power) == (1.0, 2.0, 3)
    assert isinstance(steeper, Curve)


def test_what_hangs_on_a_module_besides_its_fields_is_not_copied():
    layer = Linear("fc", n_in=2, n_out=2)
    handle = layer.W
    for again in (
        copy.copy(layer),
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        attrs.evolve(layer),
    ):
        assert again == layer
        assert again.W is not handle


@pytest.mark.parametrize(
    ("make", "ours"),
    [
        (lambda: ptml.optim.adam(lr=1e-3), "learning_rate"),
        (lambda: ptml.optim.adam(eps=1e-6), "epsilon"),
        (lambda: ptml.layers.Linear(in_features=2, n_out=3), "n_in"),
        (lambda: ptml.layers.Linear(n_in=2, units=3), "n_out"),
        (lambda: ptml.layers.Dropout(rate=0.1), "p"),
    ],
)
def test_a_name_from_another_library_is_told_ours(make, ours):
    with pytest.raises(TypeError, match=f"Did you mean '{ours}'"):
        make()
