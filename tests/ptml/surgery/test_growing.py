"""Growing: what is kept, what is drawn, what begins anew, and what is refused."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

import ptml
from ptml.activations import ReLU
from ptml.initializers import Constant, Ones
from ptml.layers import BatchNorm, Input, Linear, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import adam, compile_train
from ptml.surgery import grow
from ptml_state import State

SEVENS = Constant(7.0)
X = np.random.default_rng(0).normal(size=(8, 3))


def network(hidden=4, n_out=2, initializer=SEVENS):
    return Sequential(
        Linear("fc", n_in=3, n_out=hidden, weight_initializer=initializer),
        BatchNorm("bn", n_in=hidden),
        ReLU(),
        Linear("head", n_in=hidden, n_out=n_out),
    )


def train(net, **options):
    loss, _ = supervised_loss(net(Input("X", shape=(None, 3))), SquaredError())
    step = compile_train(loss, adam(1e-2), **{"seed": 0, **options})
    step(X, np.ones((8, net[-1].n_out)))
    return step


def test_the_old_part_is_kept_and_the_new_one_is_what_the_network_declares():
    state = train(network()).state
    grown = grow(state, network(hidden=6), seed=1)
    np.testing.assert_array_equal(grown["fc/W"][:, :4], state["fc/W"])
    np.testing.assert_array_equal(grown["fc/W"][:, 4:], 7.0)
    np.testing.assert_array_equal(grown["head/W"][:4], state["head/W"])
    np.testing.assert_array_equal(grown["head/W"][4:], ptml.init(network(hidden=6), seed=1)["head/W"][4:])
    np.testing.assert_array_equal(grown["bn/running_var"], [*state["bn/running_var"], 1, 1])
    assert grown["head/b"] is state["head/b"]
    assert grown.roles == {a: r for a, r in state.roles.items() if a in grown}


def test_moments_of_what_has_grown_begin_anew_and_the_others_go_on():
    state = train(network()).state
    wide = network(n_out=3)
    grown = grow(state, wide, seed=1)
    assert set(state) - set(grown) == {
        f"adam/{moment}_moment/head/{name}" for moment in ("first", "second") for name in "Wb"
    }
    step = train(wide, state=grown)
    assert int(step.state["adam/step_count"]) == 2
    assert step.state["adam/first_moment/head/W"].shape == (4, 3)


def test_a_network_of_the_same_sizes_leaves_all_as_it_was():
    state = train(network()).state
    assert grow(state, network()) == state


def test_layers_without_a_name_grow_too():
    def numbered(n_out):
        return Sequential(Linear(n_in=3, n_out=3), Linear(n_in=3, n_out=n_out))

    state = train(numbered(2)).state.drop("adam")
    grown = grow(state, numbered(3), seed=1)
    np.testing.assert_array_equal(grown["Linear_2/W"][:, :2], state["Linear_2/W"])
    assert [leaf.layer.configuration for leaf in grown.leaves] == 2 * ["Linear(n_in=3, n_out=3)"] * 2
    assert train(numbered(3), state=grown).state["Linear_2/b"].shape == (3,)


def test_the_dtype_is_the_states():
    state = ptml.init(network(), seed=0).astype("float32")
    grown = grow(state, network(hidden=5), seed=1)
    assert {str(array.dtype) for array in grown.values()} == {"float32"}


def test_leaves_belong_to_the_slots_of_the_network_as_it_is_now():
    wide = network(hidden=5)
    grown = grow(ptml.init(network(), seed=0), wide, seed=1)
    assert [leaf.uid for leaf in grown.leaves] == [handle.slot.uid for handle in ptml.slots(wide)]
    assert grown[wide[0].W].shape == (3, 5)


def test_a_seed_decides_what_is_drawn():
    state, wide = ptml.init(network(), seed=0), network(hidden=5)
    assert grow(state, wide, seed=1) == grow(state, wide, seed=1)
    assert grow(state, wide, seed=1) != grow(state, wide, seed=2)
    assert grow(state, wide) != grow(state, wide)


def test_what_the_state_lacks_is_left_to_be_drawn():
    longer = Sequential(*network().layers, Linear("last", n_in=2, n_out=1))
    state = ptml.init(network(), seed=0)
    assert grow(state, longer) == state


def test_leaves_that_would_shrink_or_lose_axes_are_refused_together():
    state = ptml.init(network(), seed=0).replace({"bn/b": np.zeros((4, 1))}, reshape=True)
    with pytest.raises(ValueError, match="leaves only grow") as raised:
        grow(state, network(hidden=3))
    lines = str(raised.value)
    assert "fc/W: float64[3,4] in the state, float64[3,3] in the network" in lines
    assert "bn/b: float64[4,1] in the state, float64[3] in the network" in lines
    assert "head/b" not in lines


def test_a_state_of_another_network_is_refused():
    with pytest.raises(ValueError, match="The state has other/W; the network has fc/W, fc/b"):
        grow(State({"other/W": [1.0]}), network())
    with pytest.raises(TypeError, match="grow takes a state and a network; got Sequential"):
        grow(network(), ptml.init(network(), seed=0))


def test_a_tied_layer_grows_once():
    fc = Linear("fc", n_in=3, n_out=3, weight_initializer=Ones())
    state = ptml.init(Sequential(fc, fc), seed=0)
    wide = attrs.evolve(fc, n_in=4, n_out=4)
    grown = grow(state, Sequential(wide, wide), seed=1)
    assert [leaf.uses for leaf in grown.leaves] == [2, 2]
    np.testing.assert_array_equal(grown["fc/W"], np.ones((4, 4)))
