"""Low-rank adapters in a network: put in, trained alone, saved, and merged."""

from __future__ import annotations

import numpy as np
import pytest

import ptml
from ptml.activations import ReLU
from ptml.layers import BatchNorm, Dropout, Input, Linear, LowRank, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import adam, chain, compile_train, freeze
from ptml.surgery import low_rank, merge_low_rank
from ptml_state import Role, State, Store, load_state, save_state, where

X = np.random.default_rng(0).normal(size=(16, 4))
Y = X[:, :2] * X[:, 2:]


def network():
    return Sequential(
        Linear("fc1", n_in=4, n_out=6), ReLU(), BatchNorm("bn", n_in=6), Linear("fc2", n_in=6, n_out=2)
    )


def trained(net, rule, steps=5, **options):
    loss, _ = supervised_loss(net(Input("X", shape=(None, 4))), SquaredError())
    step = compile_train(loss, rule, **{"seed": 0, **options})
    for _ in range(steps):
        step(X, Y)
    return step


def predictions(net, state):
    return ptml.compile_predict(net(Input("X", shape=(None, 4))), state=state)(X)


def test_dense_layers_get_adapters_beside_them_and_the_rest_stays():
    net = network()
    adapted = low_rank(net, rank=2, alpha=4)
    assert adapted[0] == LowRank("fc1/low_rank", base=net[0], rank=2, alpha=4)
    assert [adapted[0].base is net[0], adapted[2] is net[2], adapted[3].base is net[3]] == [True] * 3
    assert set(ptml.init(net, seed=0)) < set(ptml.init(adapted, seed=0))
    assert net == network()


@pytest.mark.parametrize(
    "chosen", ["fc1", "fc1*", lambda layer: layer.address == "fc1", where("fc1") & Linear]
)
def test_a_selector_says_which(chosen):
    adapted = low_rank(network(), chosen, rank=1)
    assert isinstance(adapted[0], LowRank)
    assert isinstance(adapted[3], Linear)


def test_tied_layers_stay_tied():
    fc = Linear("fc", n_in=4, n_out=4)
    adapted = low_rank(Sequential(fc, ReLU(), fc), rank=1)
    assert adapted[0] is adapted[2]
    plain, state = merge_low_rank(adapted, ptml.init(adapted, seed=0))
    assert plain == Sequential(fc, ReLU(), fc)
    assert state.leaves[0].uses == 2


def test_layers_without_a_name_keep_their_numbers():
    net = Sequential(Linear(n_in=4, n_out=4), ReLU(), Linear(n_in=4, n_out=2))
    state = trained(net, adam()).state.drop("adam")
    adapted = low_rank(net, rank=1)
    assert adapted[2].name == "Linear_2/low_rank"
    np.testing.assert_array_equal(
        predictions(adapted, Store(state | _adapters(adapted))), predictions(net, state)
    )
    step = trained(adapted, chain(freeze(~where(LowRank)), adam(0.1)), state=state)
    assert step.state.select("Linear_?/?") == state
    plain, merged = merge_low_rank(adapted, step.state)
    np.testing.assert_allclose(predictions(plain, merged), predictions(adapted, step.state), rtol=1e-12)


def _adapters(net):
    return ptml.init(net, seed=0).select(LowRank)


def test_the_base_is_unchanged_bit_for_bit_and_only_adapters_have_moments():
    net = network()
    base = trained(net, adam(1e-2)).state.select(Role.PARAMETER | Role.STATISTIC)
    adapted = low_rank(net, rank=2)
    step = trained(adapted, chain(freeze(~where(LowRank)), adam(1e-2)), state=base)
    state = step.state
    adapters = [f"{fc}/low_rank/{factor}" for fc in ("fc1", "fc2") for factor in "AB"]
    assert state.select(Role.PARAMETER & ~where(LowRank)) == base.select(Role.PARAMETER)
    moments = [a for a in state if a.startswith(("adam/first_moment", "adam/second_moment"))]
    assert sorted(moments) == sorted(
        f"adam/{moment}_moment/{a}" for a in adapters for moment in ("first", "second")
    )
    fresh = trained(adapted, chain(freeze(~where(LowRank)), adam(1e-2)), steps=0, state=base).state
    assert all((state[address] != fresh[address]).any() for address in adapters)
    losses = [float(step(X, Y)) for _ in range(30)]
    assert losses[-1] < losses[0]


def test_merged_predictions_are_those_of_the_adapters():
    net = network()
    base = trained(net, adam(1e-2)).state.select(Role.PARAMETER | Role.STATISTIC)
    adapted = low_rank(net, rank=2, alpha=3.0)
    state = trained(adapted, chain(freeze(~where(LowRank)), adam(1e-1)), state=base).state
    plain, merged = merge_low_rank(adapted, state)
    assert plain == net
    assert list(merged) == list(base)
    assert merged.roles == base.roles
    np.testing.assert_allclose(
        predictions(plain, merged), predictions(adapted, state), rtol=1e-12, atol=1e-12
    )
    assert np.abs(predictions(plain, merged) - predictions(net, base | state.select("bn"))).max() > 1e-3
    A, B = state["fc1/low_rank/A"], state["fc1/low_rank/B"]
    np.testing.assert_allclose(merged["fc1/W"], base["fc1/W"] + 1.5 * A @ B, rtol=1e-14)


def test_adapters_are_saved_alone_and_put_back(tmp_path):
    net = network()
    base = trained(net, adam(1e-2)).state.select(Role.PARAMETER | Role.STATISTIC)
    adapted = low_rank(net, rank=1)
    state = trained(adapted, chain(freeze(~where(LowRank)), adam(1e-1)), state=base).state
    save_state(state.select(LowRank), tmp_path / "adapters.safetensors")
    back = base | load_state(tmp_path / "adapters.safetensors")
    statistics = state.select(Role.STATISTIC)
    np.testing.assert_array_equal(
        predictions(adapted, back | statistics), predictions(adapted, state.drop("adam"))
    )


def test_merging_keeps_the_dtype_and_rounds_once(float32):
    net = Sequential(Linear("fc", n_in=4, n_out=3))
    adapted = low_rank(net, rank=2)
    rng = np.random.default_rng(0)
    state = ptml.init(adapted, seed=0).map(lambda array: rng.normal(size=array.shape).astype("float32"))
    _, merged = merge_low_rank(adapted, state)
    W, A, B = (state[a].astype("float64") for a in ("fc/W", "fc/low_rank/A", "fc/low_rank/B"))
    assert merged["fc/W"].dtype == np.float32
    np.testing.assert_array_equal(merged["fc/W"], (W + A @ B).astype("float32"))


def test_a_lone_adapter_is_merged_into_a_lone_layer():
    fc = Linear("fc", n_in=4, n_out=3)
    adapter = LowRank("fc/low_rank", base=fc, rank=1)
    plain, merged = merge_low_rank(adapter, ptml.init(adapter, seed=0))
    assert plain is fc
    assert list(merged) == ["fc/W", "fc/b"]


def test_what_matches_no_dense_layer_is_refused():
    with pytest.raises(
        ValueError, match="'bn' matches no Linear layer of the network, which has fc1, bn, fc2"
    ):
        low_rank(network(), "bn", rank=1)
    with pytest.raises(KeyError, match="'fc3' matches nothing in the network"):
        low_rank(network(), "fc3", rank=1)


def test_a_second_adapter_is_refused():
    adapted = low_rank(network(), "fc1", rank=1)
    with pytest.raises(ValueError, match="these have an adapter already: fc1"):
        low_rank(adapted, rank=1)
    assert isinstance(low_rank(adapted, "fc2", rank=1)[3], LowRank)


def test_a_layer_that_another_one_builds_is_refused():
    class Block(ptml.Layer):
        n_in: int

        @ptml.sublayer
        def inner(self):
            return Linear(f"{self.name}/inner", n_in=self.n_in, n_out=self.n_in)

        def build(self, X):
            return self.inner(X)

    with pytest.raises(ValueError, match="block/inner cannot be replaced: another layer builds them"):
        low_rank(Sequential(Block("block", n_in=3)), rank=1)


def test_merging_without_adapters_is_refused():
    with pytest.raises(ValueError, match="the network has no LowRank layer"):
        merge_low_rank(network(), ptml.init(network(), seed=0))


def test_merging_a_state_that_lacks_adapters_is_refused():
    adapted = low_rank(network(), rank=1)
    with pytest.raises(ValueError, match="the state lacks 'fc1/low_rank/A'"):
        merge_low_rank(adapted, ptml.init(network(), seed=0))
    with pytest.raises(
        ValueError, match=r"'fc1/low_rank/A' is of shape \(4, 2\), and the network's of \(4, 1\)"
    ):
        merge_low_rank(adapted, ptml.init(low_rank(network(), rank=2), seed=0))
    with pytest.raises(TypeError, match="merge_low_rank takes a network and a state; got dict"):
        merge_low_rank(adapted, {})


def test_a_layer_used_without_its_adapter_too_is_not_merged():
    fc = Linear("fc", n_in=4, n_out=4)
    adapted = Sequential(LowRank("one", base=fc, rank=1), Dropout("drop", p=0.5), fc)
    with pytest.raises(ValueError, match="'fc' stands in the network outside of its adapter 'one' too"):
        merge_low_rank(adapted, ptml.init(adapted, seed=0))
    twice = Sequential(LowRank("one", base=fc, rank=1), LowRank("two", base=fc, rank=1))
    with pytest.raises(ValueError, match="outside of its adapter 'one' too, or has several"):
        merge_low_rank(twice, State(ptml.init(twice, seed=0)))
