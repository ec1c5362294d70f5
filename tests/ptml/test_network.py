"""Networks as trees: numbering, ordering, collisions, tied layers, selecting and replacing."""

from __future__ import annotations

import attrs
import pytest

import ptml
from ptml.activations import ReLU
from ptml.initializers import Zeros
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.network import lay_out
from ptml_state import Role, Slot


class Block(ptml.Layer):
    inner: ptml.Layer
    others: tuple[ptml.Layer, ...] = ()

    @ptml.slot
    def gain(self):
        return ptml.parameter((), Zeros())

    def build(self, X):
        for layer in (self.inner, *self.others):
            X = layer(X)
        return self.gain * X


class Twin(ptml.Layer):
    n: int

    @ptml.sublayer
    def left(self):
        return Linear(f"{self.name}/left", n_in=self.n, n_out=self.n)

    def build(self, X):
        return self.left(X)


class Store(ptml.Layer):
    """Names a slot of its own as if it were a sublayer's."""

    @ptml.slot
    def a(self):
        return ptml.parameter((), Zeros())


def linear(name=None, **options):
    return Linear(name, **{"n_in": 2, "n_out": 2, **options})


@pytest.fixture
def X():
    return Input("X", (None, 2))


def addresses(network):
    return list(ptml.init(network, seed=0))


def test_walking_goes_depth_first_through_the_fields():
    net = Sequential(Block("block", inner=linear("a"), others=[ReLU(), linear("b")]), Twin("twin", n=2))
    names = [layer.name for layer in ptml.walk(net) if isinstance(layer, ptml.Layer)]
    assert names == ["Sequential", "block", "a", "ReLU", "b", "twin", "twin/left"]


def test_walking_takes_tuples_lists_and_dicts():
    a, b = linear("a"), linear("b")
    for network in ((a, b), [a, b], {"one": a, "two": b}, {"one": [a], "two": (b,)}):
        assert [m for m in ptml.walk(network) if isinstance(m, Linear)] == [a, b]


def test_unnamed_layers_are_numbered_by_position_and_a_single_one_is_bare():
    net = Sequential(
        linear(), BatchNorm(n_in=2), Block("block", inner=linear(), others=(linear("fc"), linear()))
    )
    layers = list(dict.fromkeys(address.split("/")[0] for address in addresses(net)))
    assert layers == ["Linear_1", "BatchNorm", "block", "Linear_2", "fc", "Linear_3"]


def test_a_layer_comes_before_those_in_its_fields():
    assert addresses(Block("block", inner=linear("a"))) == ["block/gain", "a/W", "a/b"]


def test_layers_without_state_take_no_number():
    net = Sequential(Dropout(p=0.0), ReLU(), Dropout(p=0.5), ReLU(), linear())
    assert addresses(net) == ["Dropout/key", "Linear/W", "Linear/b"]


def test_a_name_that_was_given_is_kept_beside_unnamed_layers():
    assert addresses((linear("Linear"), linear())) == ["Linear/W", "Linear/b", "Linear_1/W", "Linear_1/b"]


def test_a_network_and_its_graph_give_the_same_addresses_in_the_same_order(X):
    net = Sequential(
        linear(),
        Block("block", inner=BatchNorm(n_in=2), others=(linear(), Dropout(p=0.5))),
        linear("fc"),
        Twin(n=2),
        Twin(n=2),
    )
    assert addresses(net(X)) == addresses(net)
    assert ptml.slots(net(X)) == ptml.slots(net)


def test_layers_outside_a_network_are_numbered_by_the_order_of_their_calls(X):
    one, two = linear(), linear()
    assert two.W is not one.W
    second = two(X)
    graph = one(second)
    placed = dict(zip(addresses(graph), ptml.slots(graph), strict=True))
    assert placed["Linear_1/W"] is two.W
    assert placed["Linear_2/W"] is one.W


def test_the_order_of_calls_decides_and_not_that_of_the_graph(X):
    one, two = linear(), linear()
    first, second = one(X), two(X)
    graphs = ([first + second], [second + first], [second, first], [first, second])
    for graph in graphs:
        assert ptml.slots(graph) == (one.W, one.b, two.W, two.b)


def test_a_tied_layer_has_one_set_of_leaves_and_shows_its_uses():
    tied = linear("tied")
    state = ptml.init(Sequential(tied, ReLU(), tied, linear("fc")), seed=0)
    assert list(state) == ["tied/W", "tied/b", "fc/W", "fc/b"]
    assert {leaf.address: leaf.uses for leaf in state.leaves} == {
        "tied/W": 2,
        "tied/b": 2,
        "fc/W": 1,
        "fc/b": 1,
    }
    assert str(state).count("shared \N{MULTIPLICATION SIGN}2") == 2


def test_equal_layers_that_are_two_objects_are_two():
    assert addresses((linear(), linear())) == ["Linear_1/W", "Linear_1/b", "Linear_2/W", "Linear_2/b"]


def test_two_layers_of_one_given_name_are_refused_with_both(X):
    one, two = linear("fc"), Linear("fc", n_in=2, n_out=3)
    message = (
        r"the address 'fc/W': one of Linear\('fc', n_in=2, n_out=2\), one of Linear\('fc', n_in=2, "
        r"n_out=3\)\. Give one of the two another name"
    )
    with pytest.raises(ValueError, match=message):
        ptml.init(Sequential(one, two), seed=0)
    with pytest.raises(ValueError, match=message):
        ptml.function([X], two(one(X)), seed=0)


def test_a_given_name_may_collide_with_a_number():
    with pytest.raises(ValueError, match=r"the address 'Linear_1/W'.*Give one of the two another name"):
        ptml.init((linear(), linear(), linear("Linear_1")), seed=0)


def test_an_address_inside_another_is_refused():
    with pytest.raises(
        ValueError, match=r"'s/a' is the address of a piece of state .* cannot lead to 's/a/W'"
    ):
        ptml.init((Store("s"), linear("s/a")), seed=0)


def test_slots_of_no_layer_are_placed_by_name_and_collide_by_name():
    def made(name, **options):
        return Slot(name, Role.OPTIMIZER, "float64", (), Zeros(), **options)

    one, two = made("best"), made("rate")
    assert [place.address for place in lay_out([], [two, one])] == ["best", "rate"]
    with pytest.raises(
        ValueError, match="Give one of the two a namespace of its own, such as namespace='fast'"
    ):
        lay_out([], [one, made("best")])
    with pytest.raises(
        ValueError, match="'best' is the address of a piece of state and so cannot lead to 'best/x'"
    ):
        lay_out([], [one, made("best/x")])


def test_a_slot_that_accompanies_another_follows_its_address():
    net = (linear(), linear())
    moment = Slot("adam/first_moment", Role.OPTIMIZER, "float64", (2, 2), Zeros(), of=net[1].W.slot)
    placed = lay_out([net], [moment, net[0].W.slot, net[1].W.slot])
    assert [place.address for place in placed] == ["Linear_1/W", "Linear_2/W", "adam/first_moment/Linear_2/W"]


def test_modules_are_selected_by_name_type_and_predicate():
    net = Sequential(linear("a"), Dropout("drop", p=0.1), Sequential(linear("b"), Dropout("late", p=0.2)))
    assert [layer.name for layer in ptml.select(net, Dropout)] == ["drop", "late"]
    assert ptml.select(net, "b") == [net[2][0]]
    assert [layer.name for layer in ptml.select(net, ptml.Layer)] == ["a", "drop", "Sequential", "b", "late"]
    assert ptml.select(net, lambda member: member.address == "a") == [net[0]]
    with pytest.raises(KeyError, match="drip"):
        ptml.select(net, "drip")


def test_replacing_keeps_the_objects_that_hold_no_match():
    net = Sequential(Sequential(linear("a")), Sequential(Dropout("drop", p=0.1), linear("b")))
    new = ptml.replace(net, Dropout, lambda drop: attrs.evolve(drop, p=0.2))
    assert new[1][0] == Dropout("drop", p=0.2)
    assert new[0] is net[0]
    assert new[1][1] is net[1][1]
    assert new[1] is not net[1]
    assert net[1][0].p == 0.1


def test_what_stands_in_two_places_is_replaced_by_one_object():
    tied = linear("tied")
    new = ptml.replace(Sequential(tied, ReLU(), tied), "tied", lambda layer: attrs.evolve(layer, bias=False))
    assert new[0] is new[2]
    assert addresses(new) == ["tied/W"]


def test_a_layer_is_replaced_by_a_layer_in_containers_too():
    new = ptml.replace({"net": [linear("a"), linear("b")]}, "b", linear("c"))
    assert addresses(new) == ["a/W", "a/b", "c/W", "c/b"]


def test_replacing_what_is_not_there_names_what_is():
    with pytest.raises(KeyError, match=r"matches no part of the network, which has a, drop"):
        ptml.replace(Sequential(linear("a"), Dropout("drop", p=0.1)), BatchNorm, linear("b"))


def test_what_another_layer_builds_is_not_left_in_place_in_silence():
    net = Sequential(Twin("twin", n=2), Linear("fc", n_in=2, n_out=2))
    with pytest.raises(ValueError, match="twin/left cannot be replaced: another layer builds them"):
        ptml.replace(net, Linear, lambda layer: attrs.evolve(layer, bias=False))


def test_what_a_replaced_layer_builds_goes_with_it():
    net = Sequential(Twin("twin", n=2), Linear("fc", n_in=2, n_out=2))
    replaced = ptml.replace(net, "twin/**", Linear("twin", n_in=2, n_out=2))
    assert replaced[0] == Linear("twin", n_in=2, n_out=2)
    assert replaced[1] is net[1]
