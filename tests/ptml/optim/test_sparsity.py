"""Sparse training: zeros that stay, through decay, momentum and a resumed run."""

from __future__ import annotations

import numpy as np
import pytest

import ptml
from ptml.layers import Input, Linear, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import (
    KeepZeros,
    adam,
    add_weight_decay,
    averaged,
    chain,
    compile_train,
    ema,
    keep_zeros,
    lookahead,
    sgd,
    trace,
)
from ptml_state import load_state, prune, save_state

X = np.random.default_rng(0).normal(size=(8, 3))
Y = X[:, :1] * X[:, 1:2]


@pytest.fixture
def net():
    return Sequential(Linear("fc1", n_in=3, n_out=5), Linear("fc2", n_in=5, n_out=1))


@pytest.fixture
def train(net):
    loss, _ = supervised_loss(net(Input("X", shape=(None, 3))), SquaredError())
    return lambda rule, **options: compile_train(loss, rule, **{"seed": 0, **options})


def test_zeros_stay_and_the_rest_moves_as_it_would(run):
    gradients = np.random.default_rng(0).normal(size=(20, 4))
    start = np.array([0.0, 1.0, -0.0, 2.0])
    free = run(sgd(0.1, momentum=0.9), p=start).follow(gradients)
    kept = run(chain(sgd(0.1, momentum=0.9), keep_zeros("p")), p=start).follow(gradients)
    np.testing.assert_array_equal(kept[:, [0, 2]], 0)
    np.testing.assert_array_equal(kept[:, [1, 3]], free[:, [1, 3]])


def test_an_entry_that_passes_through_zero_goes_on(run):
    problem = run(chain(sgd(1.0), keep_zeros("p")), p=[1.0, 0.0])
    np.testing.assert_array_equal(problem.follow([[1.0, 1.0]] * 2), [[0.0, 0.0], [-1.0, 0.0]])


def test_a_gradient_that_is_not_finite_wakes_nothing(run):
    problem = run(chain(sgd(1.0), keep_zeros("p")), p=[1.0, 0.0])
    problem([0.0, np.nan])
    np.testing.assert_array_equal(problem["p"], [1.0, 0.0])


def test_pruned_weights_stay_zero_while_the_network_trains_and_after_it_is_resumed(net, train, tmp_path):
    pruned = prune(ptml.init(net, seed=0), 0.5)
    zero = {address: pruned[address] == 0 for address in ("fc1/W", "fc2/W")}
    assert sum(int(entries.sum()) for entries in zero.values()) == 10

    def rule():
        return chain(adam(1e-1), add_weight_decay(1e-2), trace(0.5), keep_zeros("**/W"))

    step = train(rule(), state=pruned)
    for _ in range(5):
        step(X, Y)
    save_state(step.state, tmp_path / "sparse.safetensors")
    again = train(rule(), state=load_state(tmp_path / "sparse.safetensors"))
    for _ in range(5):
        assert step(X, Y) == again(X, Y)
    for state in (step.state, again.state):
        for address, entries in zero.items():
            np.testing.assert_array_equal(state[address] == 0, entries)
            np.testing.assert_array_equal(state[f"keep_zeros/mask/{address}"], ~entries)
        assert (state["fc1/b"] != 0).any()
    assert step.state == again.state


def test_averages_and_slow_weights_of_zeros_are_zero(net, train):
    pruned = prune(ptml.init(net, seed=0), 0.5)
    step = train(chain(lookahead(chain(adam(0.1), keep_zeros("**/W")), 2), ema(0.5)), state=pruned)
    for _ in range(5):
        step(X, Y)
    for state in (step.state, averaged(step), averaged(step, "lookahead/slow")):
        for address in ("fc1/W", "fc2/W"):
            np.testing.assert_array_equal(state[address] == 0, pruned[address] == 0)


def test_masks_are_leaves_that_may_be_set_in_mid_run(net, train):
    step = train(chain(adam(0.1), keep_zeros("**/W")))
    further = prune(step.state, 0.8)
    step.store.set({a: further[a] for a in ("fc1/W", "fc2/W")})
    step.store.set({f"keep_zeros/mask/{a}": further[a] != 0 for a in ("fc1/W", "fc2/W")})
    step(X, Y)
    np.testing.assert_array_equal(step.state["fc1/W"] == 0, further["fc1/W"] == 0)


@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_every_backend_keeps_zeros(backend, float32, net, train):
    step = train(
        chain(adam(0.1), keep_zeros("**/W")), state=prune(ptml.init(net, seed=0), 0.5), backend=backend
    )
    before = step.state
    step(X.astype("float32"), Y.astype("float32"))
    assert before["keep_zeros/mask/fc1/W"].dtype == bool
    np.testing.assert_array_equal(step.state["fc1/W"] == 0, before["fc1/W"] == 0)
    assert (step.state["fc1/W"] != before["fc1/W"]).any()


def test_it_stands_behind_the_rule(train):
    with pytest.raises(
        ValueError, match=r"Put it behind the rule: chain\(adam\(1e-3\), KeepZeros\('\*\*/W'\)\)"
    ):
        train(chain(keep_zeros("**/W"), adam()))


def test_it_stands_ahead_of_an_average_and_inside_of_a_lookahead():
    for last in (ema(), lookahead(adam())):
        with pytest.raises(
            ValueError, match=r"has to stand last in a chain.*KeepZeros\('p'\) stands behind it"
        ):
            chain(*([adam()] if last == ema() else []), last, keep_zeros("p"))


def test_a_selector_is_needed_and_has_to_match():
    with pytest.raises(TypeError, match="where"):
        KeepZeros()
    with pytest.raises(TypeError, match="A selector is one of"):
        KeepZeros(None)


def test_a_selector_that_matches_nothing_that_moves_is_refused(train):
    with pytest.raises(KeyError, match="'fc3' matches nothing in the parameters"):
        train(chain(adam(), keep_zeros("fc3")))
    with pytest.raises(ValueError, match="matches none of the parameters that move: fc1/W, fc1/b"):
        train(chain(adam(), keep_zeros(lambda parameter: parameter.ndim == 3)))
