"""A layer that is repeated in a loop: the function, the state and the draws of as many copies."""

from __future__ import annotations

import pickle
import time

import numpy as np
import pytest

import ptml
from ptml.activations import Tanh
from ptml.layers import (
    BatchNorm,
    Dropout,
    Input,
    LayerNorm,
    Linear,
    Repeat,
    Residual,
    Scanned,
    Sequential,
    TransformerBlock,
    WeightNorm,
)
from ptml.optim import adam, compile_train, sgd
from ptml.surgery import stack, unstack
from ptml_state import where

N = 4


def block(*more):
    return Sequential(Linear("fc", n_in=N, n_out=N), Tanh(), *more, name="block")


def noisy():
    return block(Dropout("drop", p=0.3), BatchNorm("bn", n_in=N))


def training(net, state, rule=None, **options):
    X = Input("X", (None, N))
    return compile_train(((net(X) - 1) ** 2).mean(), rule or adam(0.01), state=state, **options)


def data(dtype="float64"):
    return np.random.default_rng(0).normal(size=(8, N)).astype(dtype)


def test_each_slice_starts_as_the_copy_would():
    layer = block(WeightNorm(Linear("out", n_in=N, n_out=N)), BatchNorm("bn", n_in=N))
    looped, copies = ptml.init(Scanned(3, layer), seed=5), ptml.init(Repeat(3, layer), seed=5)
    assert len(looped) * 3 == len(copies)
    for address, value in looped.items():
        for k in range(3):
            np.testing.assert_array_equal(value[k], copies[address.replace("block", f"block{k}", 1)])


def test_training_is_that_of_the_copies_draws_and_statistics_too():
    looped, copies = Repeat(3, noisy(), scan=True), Repeat(3, noisy())
    state = ptml.init(looped, seed=1)
    steps = training(looped, state), training(copies, unstack(state, looped))
    for _ in range(3):
        first, other = (float(step(data())) for step in steps)
        assert first == pytest.approx(other, rel=1e-12)
    again = stack(steps[1].state, looped)
    assert list(again) == list(steps[0].state)
    for address in again:
        if not address.endswith("key"):
            np.testing.assert_allclose(again[address], steps[0].state[address], rtol=1e-9, atol=1e-12)
    X = Input("X", (None, N))
    predicted = [
        ptml.compile_predict(net(X), state=step)(data())
        for net, step in zip((looped, copies), steps, strict=True)
    ]
    np.testing.assert_allclose(*predicted, rtol=1e-8)


@pytest.mark.backends("c", "jax", "mlx", "pytorch")
def test_every_backend_trains_it(backend, float32):
    net = Scanned(3, noisy())
    state = ptml.init(net, seed=1)
    steps = [training(net, state, sgd(0.1), backend=name) for name in ("numba", backend)]
    for _ in range(2):
        first, other = (float(step(data("float32"))) for step in steps)
        assert other == pytest.approx(first, rel=1e-5)
    for address in state:
        np.testing.assert_allclose(steps[1].state[address], steps[0].state[address], rtol=1e-4, atol=1e-5)


def test_the_states_go_over_into_each_other():
    looped, copies = Scanned(3, noisy()), Repeat(3, noisy())
    state = ptml.init(looped, seed=1)
    apart = unstack(state, looped)
    assert list(apart) == list(ptml.init(copies, seed=1))
    together = stack(apart, looped)
    assert list(together) == list(state)
    assert all(
        np.array_equal(together[address], state[address]) for address in state if address[-3:] != "key"
    )


def test_an_optimizers_state_goes_over_too():
    looped, copies = Scanned(2, block()), Repeat(2, block())
    state = training(looped, ptml.init(looped, seed=0)).state
    apart = unstack(state, looped)
    assert list(apart) == list(training(copies, ptml.init(copies, seed=0)).state)
    assert list(stack(apart, looped)) == list(state)


def test_what_does_not_go_over_says_why():
    net, other = Scanned(2, block()), block()
    for function in (stack, unstack):
        with pytest.raises(ValueError, match=rf"{function.__name__}: the network has no Scanned layer"):
            function(ptml.init(other, seed=0), other)
    state = ptml.init(Repeat(2, block()), seed=0)
    with pytest.raises(ValueError, match=r"block0/fc/W, block1/fc/W, \.\.\.; the state lacks block1/fc/W"):
        stack(state.drop("block1/fc/W"), net)
    with pytest.raises(ValueError, match="'block/fc/W' is of shape"):
        unstack(ptml.init(Scanned(3, block()), seed=0), net)


def test_compiling_costs_no_more_for_more_copies():
    took = {}
    for n in (2, 32):
        start = time.process_time()
        training(Scanned(n, block(LayerNorm("ln", n_in=N))), None)(data())
        took[n] = time.process_time() - start
    assert took[32] < 2 * took[2] + 1


def test_loops_nest():
    looped = Scanned(2, Sequential(Scanned(3, block()), Linear("end", n_in=N, n_out=N), name="outer"))
    copies = Repeat(2, Sequential(Repeat(3, block()), Linear("end", n_in=N, n_out=N), name="outer"))
    state, flat = ptml.init(looped, seed=0), ptml.init(copies, seed=0)
    assert state["outer/block/fc/W"].shape == (2, 3, N, N)
    np.testing.assert_array_equal(state["outer/block/fc/W"][1, 2], flat["outer1/block2/fc/W"])
    X = Input("X", (None, N))
    found = [
        ptml.compile_predict(net(X), state=values)(data())
        for net, values in ((looped, state), (copies, flat))
    ]
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_copies_of_a_loop_are_named_below_them():
    state = ptml.init(Repeat(2, Sequential(Scanned(3, block()), name="outer")), seed=0)
    assert list(state) == [f"outer{k}/block/fc/{leaf}" for k in range(2) for leaf in ("W", "b")]


def test_the_pattern_is_no_part_of_the_network():
    layer = block()
    net = Sequential(layer, Scanned(2, layer, name="loop"))
    assert list(ptml.init(net, seed=0)) == ["fc/W", "fc/b", "loop/fc/W", "loop/fc/b"]


def test_layers_of_the_pattern_are_selected_and_replaced():
    net = Scanned(2, noisy())
    assert len(ptml.select(net, Dropout)) == 1
    silent = ptml.replace(net, Dropout, lambda drop: Dropout(drop.name, p=0.0))
    assert "block/drop/key" not in ptml.init(silent, seed=0)
    assert [h.slot.name for h in ptml.slots(net, where(BatchNorm))][:2] == ["bn/scale", "bn/b"]


def test_a_decoder_keeps_a_cache_for_each_copy():
    def net(scan):
        layer = TransformerBlock("block", d_model=N, n_head=2, is_causal=True)
        return Repeat(3, layer, scan=scan)

    looped, copies = net(True), net(False)
    state = ptml.init(looped, seed=0)
    x, found = np.random.default_rng(0).normal(size=(1, 5, N)), []
    for one, values in ((looped, state), (copies, unstack(state, looped))):
        X = Input("X", (1, None, N))
        decoder = ptml.compile_decode(one, inputs=[X], length=8, state=values)
        found.append(np.concatenate([decoder(x[:, :2]), decoder(x[:, 2:])], axis=1))
    np.testing.assert_allclose(*found, rtol=1e-10)


def test_it_is_a_value_that_repeat_gives():
    net = Repeat(3, noisy(), name="deep", scan=True)
    assert net == Scanned(3, noisy(), name="deep")
    assert (net.name, Scanned(3, noisy()).name) == ("deep", "block")
    copy = pickle.loads(pickle.dumps(net))
    assert copy == net
    assert all(
        np.array_equal(value, ptml.init(copy, seed=0)[a]) for a, value in ptml.init(net, seed=0).items()
    )
    assert ptml.from_config(ptml.to_config(net)) == net


def test_a_pickled_graph_has_its_slots():
    X, net = Input("X", (None, N)), Scanned(2, block())
    X2, Y2 = pickle.loads(pickle.dumps((X, net(X))))
    state = ptml.init(net, seed=0)
    np.testing.assert_array_equal(
        ptml.compile_predict(Y2, inputs=[X2], state=state)(data()),
        ptml.compile_predict(net(X), inputs=[X], state=state)(data()),
    )


def test_a_residual_block_may_be_repeated():
    net = Scanned(2, Residual(Linear("fc", n_in=N, n_out=N), name="res"))
    assert list(ptml.init(net, seed=0)) == ["res/fc/W", "res/fc/b"]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Scanned(0, block()), ValueError, r"Scanned takes the number of copies first, .*got 0"),
        (lambda: Scanned(1.5, block()), TypeError, r"Scanned takes the number of copies first, .*got 1\.5"),
        (lambda: Scanned(2, Linear), TypeError, r"Scanned copies a layer; got <class"),
        (lambda: Repeat(2, 3, scan=True), TypeError, r"Repeat copies a layer; got 3"),
        (lambda: Scanned(2, block(), "name"), TypeError, r"Scanned takes n and layer by position"),
    ],
)
def test_what_is_no_number_or_layer_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
