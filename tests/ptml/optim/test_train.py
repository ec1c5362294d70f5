"""`compile_train`: one call computes the loss and moves the parameters."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.initializers import Zeros
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import (
    Steps,
    adam,
    adamw,
    chain,
    clip_by_global_norm,
    compile_train,
    cosine_schedule,
    get_gradients,
    scalar_state,
    sgd,
    trace,
)
from ptml_state import Role, Slot, State, Store

PYTHON = {"mode": Mode(linker="py", optimizer="fast_compile")}


@pytest.fixture
def X():
    return Input("X", (None, 2))


@pytest.fixture
def fc():
    return Linear("fc", n_in=2, n_out=1)


def squared(prediction):
    return supervised_loss(prediction, SquaredError())


def train(loss, rule, **options):
    if "state" not in options:
        options.setdefault("seed", 0)
    return compile_train(loss, rule, compile_kwargs=PYTHON, **options)


def batch(seed=0, n=6):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)), rng.normal(size=(n, 1))


def test_a_step_gives_the_loss_before_it_and_moves_the_parameters(X, fc):
    loss, _ = squared(fc(X))
    step = train(loss, sgd(0.1))
    x, y = batch()
    W, b = step.state["fc/W"], step.state["fc/b"]
    residual = x @ W + b - y
    np.testing.assert_allclose(step(x, y), (residual**2).mean(), rtol=1e-12)
    np.testing.assert_allclose(step.state["fc/W"], W - 0.1 * 2 * x.T @ residual / 6, rtol=1e-12)
    np.testing.assert_allclose(step.state["fc/b"], b - 0.1 * 2 * residual.mean(0), rtol=1e-12)


def test_inputs_are_collected_in_the_order_in_which_they_were_made(X, fc):
    loss, target = squared(fc(X))
    rate = pt.scalar("rate")
    step = train(loss, sgd(rate))
    assert step.inputs == (X, target, rate)
    given = train(loss, sgd(rate), inputs=[rate, target, X])
    assert given.inputs == (rate, target, X)


def test_the_loss_comes_alone_or_with_the_extra_outputs(X, fc):
    prediction = fc(X)
    loss, _ = squared(prediction)
    x, y = batch()
    assert train(loss, sgd(0.1))(x, y).shape == ()
    results = train(loss, sgd(0.1), extra_outputs=[prediction, fc.W])(x, y)
    assert isinstance(results, tuple)
    assert [r.shape for r in results] == [(), (6, 1), (2, 1)]
    assert train(loss, sgd(0.1), extra_outputs=())(x, y).shape == ()


def test_extra_outputs_are_computed_before_the_step(X, fc):
    loss, _ = squared(fc(X))
    step = train(loss, sgd(0.1), extra_outputs=[fc.W])
    before = step.state["fc/W"]
    np.testing.assert_array_equal(step(*batch())[1], before)


def test_extra_updates_write_slots_and_shared_variables(X, fc):
    loss, _ = squared(fc(X))
    seen, best = pytensor.shared(0), Slot("best", Role.OPTIMIZER, "float64", (), Zeros()).handle
    for extra in ({seen: seen + 1, best: loss}, [(seen, seen + 1), (best, loss)]):
        step = train(loss, sgd(0.1), extra_updates=extra)
        value = step(*batch())
        assert step.state["best"] == value
    assert seen.get_value() == 2


def test_an_extra_update_of_what_the_rule_writes_is_refused(X, fc):
    loss, _ = squared(fc(X))
    with pytest.raises(ValueError, match=r"fc/W.* has two updates"):
        train(loss, sgd(0.1), extra_updates={fc.W: fc.W})


def test_parameters_given_are_moved_and_no_others(X, fc):
    loss, _ = squared(fc(X))
    step = train(loss, sgd(0.1), parameters=[fc.b])
    before = step.state
    step(*batch())
    np.testing.assert_array_equal(step.state["fc/W"], before["fc/W"])
    assert not np.array_equal(step.state["fc/b"], before["fc/b"])


def test_a_frozen_block_is_left_out_by_a_selector(X):
    net = Sequential(Linear("body", n_in=2, n_out=2), Linear("head", n_in=2, n_out=1))
    loss, _ = squared(net(X))
    step = train(loss, adam(0.1), parameters=ptml.slots(net, "head"))
    assert [a for a in step.state if a.startswith("adam/first")] == [
        "adam/first_moment/head/W",
        "adam/first_moment/head/b",
    ]


def test_statistics_and_keys_are_no_parameters(X):
    net = Sequential(
        Linear("fc", n_in=2, n_out=2),
        BatchNorm("bn", n_in=2),
        Dropout("drop", p=0.5),
        Linear("out", n_in=2, n_out=1),
    )
    loss, _ = squared(net(X))
    step = train(loss, adam(0.1))
    moved = [a.removeprefix("adam/first_moment/") for a in step.state if a.startswith("adam/first_moment/")]
    assert moved == ["fc/W", "fc/b", "bn/scale", "bn/b", "out/W", "out/b"]
    assert list(step.state)[:9] == list(ptml.init(net, seed=0))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda loss, fc, X: train(sgd(0.1), loss),
            TypeError,
            r"the loss is a scalar tensor; got Sgd\(0\.1\)\. Are the two",
        ),
        (lambda loss, fc, X: train(3.0, sgd(0.1)), TypeError, "the loss is a scalar tensor; got 3.0"),
        (
            lambda loss, fc, X: train(fc(X), sgd(0.1)),
            ValueError,
            r"floating-point scalar; got .*mean\(\) or sum\(\)",
        ),
        (
            lambda loss, fc, X: train((X**2).sum(), sgd(0.1)),
            ValueError,
            "depends on no parameters: there is nothing to",
        ),
        (lambda loss, fc, X: train(loss, sgd(0.1), extra_outputs=X), TypeError, r"Write extra_outputs=\[X\]"),
        (lambda loss, fc, X: train(loss, sgd(0.1), parameters=[]), ValueError, "`parameters` is empty"),
        (
            lambda loss, fc, X: train(loss, sgd(0.1), parameters=fc.W),
            TypeError,
            "`parameters` is a list of handles",
        ),
        (
            lambda loss, fc, X: train(loss, sgd(0.1), parameters=["fc/W"]),
            TypeError,
            r"slots\(network, Role\.PARAMETER\)",
        ),
        (lambda loss, fc, X: train(loss, sgd(0.1), parameters=[fc.W, fc.W]), ValueError, "lists fc/W twice"),
        (
            lambda loss, fc, X: train(loss, sgd(0.1), parameters=[Linear("far", n_in=1, n_out=1).W]),
            ValueError,
            "The loss does not depend on far/W",
        ),
        (
            lambda loss, fc, X: train(loss, clip_by_global_norm(1.0)),
            ValueError,
            r"ends in gradients.*chain\(\.\.\., sgd",
        ),
        (
            lambda loss, fc, X: train(loss, adam),
            TypeError,
            r"the rule is a transform such as adam\(1e-3\), .*; got Adam",
        ),
        (
            lambda loss, fc, X: train(loss, lambda loss, parameters: {}),
            TypeError,
            "returned dict. A transform returns Updates",
        ),
        (
            lambda loss, fc, X: train(loss, 0.1),
            TypeError,
            r"the rule is a transform such as adam\(1e-3\), .*; got 0\.1",
        ),
        (
            lambda loss, fc, X: train(loss, sgd(0.1)(loss, [fc.W])),
            TypeError,
            r"the rule is a transform .*; got Steps",
        ),
        (lambda loss, fc, X: compile_train(loss, sgd(0.1), [fc.W]), TypeError, "positional"),
    ],
)
def test_a_mistake_is_told_what_to_write(X, fc, call, error, message):
    loss, _ = squared(fc(X))
    with pytest.raises(error, match=message):
        call(loss, fc, X)


def test_a_rule_may_be_a_plain_function(X, fc):
    def descend(loss, parameters):
        gradients = get_gradients(loss, parameters)
        return Steps({p: -0.1 * g for p, g in zip(parameters, gradients, strict=True)})

    loss, _ = squared(fc(X))
    one, other = train(loss, descend), train(loss, sgd(0.1))
    one(*batch())
    other(*batch())
    assert one.state.allclose(other.state, rtol=1e-14)


def test_a_chain_over_one_store_has_one_momentum_and_over_two_has_two(X, fc):
    loss, _ = squared(fc(X))
    rule = chain(clip_by_global_norm(1.0), trace(0.9), sgd(0.1))
    x, y = batch()
    alone = train(loss, rule)
    for _ in range(4):
        alone(x, y)
    store = Store(seed=0)
    first, second = train(loss, rule, state=store), train(loss, rule, state=store)
    for step in (first, second, first, second):
        step(x, y)
    assert store.state.allclose(alone.state, rtol=1e-14)
    assert first.slots == second.slots
    apart = train(loss, rule)
    apart(x, y)
    assert not apart.state.allclose(alone.state)
    assert list(apart.state) == list(alone.state)


def test_a_second_training_step_of_other_inputs_moves_the_same_parameters(X, fc):
    # Two datasets, two losses, one network and one rule.
    Z = Input("Z", (None, 2))
    rule = adam(0.05)
    supervised, target = squared(fc(X))
    penalty = (fc(Z) ** 2).mean()
    store = Store(seed=0)
    one, two = train(supervised, rule, state=store), train(penalty, rule, state=store)
    assert one.inputs == (X, target)
    assert two.inputs == (Z,)
    x, y = batch()
    before = store.state
    one(x, y)
    middle = store.state
    two(x)
    after = store.state
    assert not np.array_equal(before["fc/W"], middle["fc/W"])
    assert not np.array_equal(middle["fc/W"], after["fc/W"])
    assert after["adam/step_count"] == 2
    assert list(one.state) == list(two.state)
    assert one.state == two.state


def test_two_rules_on_one_store_live_under_their_own_names(X, fc):
    loss, _ = squared(fc(X))
    store = Store(seed=0)
    train(loss, adam(0.1), state=store)
    train(loss, sgd(0.1, momentum=0.9), state=store)
    assert {a.split("/")[0] for a in store.state} == {"fc", "adam", "sgd"}
    with pytest.raises(ValueError, match=r"'adam/.*' of this store belongs to another object"):
        train(loss, adam(0.2), state=store)


def test_colliding_transforms_are_refused_at_compile_time(X, fc):
    loss, _ = squared(fc(X))
    with pytest.raises(ValueError, match=r"'trace/.*/fc/W'.*Trace\(\).*Trace\(0\.5\).*namespace"):
        train(loss, chain(trace(0.9), trace(0.5), sgd(0.1)))
    fine = train(loss, chain(trace(0.9, namespace="fast"), trace(0.5, namespace="slow"), sgd(0.1)))
    assert {"fast", "slow"} <= {a.split("/")[0] for a in fine.state}


def test_a_step_from_a_taken_state_goes_on_as_if_nothing_had_happened(X):
    net = Sequential(
        Linear("fc", n_in=2, n_out=3),
        BatchNorm("bn", n_in=3),
        Dropout("drop", p=0.5),
        Linear("out", n_in=3, n_out=1),
    )
    loss, _ = squared(net(X))
    rule = chain(clip_by_global_norm(1.0), adamw(cosine_schedule(0.1, 10)))
    step = train(loss, rule)
    for k in range(3):
        step(*batch(k))
    taken = step.state
    resumed = train(loss, rule, state=taken)
    assert resumed.state == taken
    for k in range(3, 6):
        assert step(*batch(k)) == resumed(*batch(k))
    assert step.state == resumed.state


def test_a_hyperparameter_that_is_a_leaf_is_steered_without_compiling(X, fc):
    loss, _ = squared(fc(X))
    rate = scalar_state("rate", 0.0)
    step = train(loss, sgd(rate))
    before = step.state["fc/W"]
    step(*batch())
    np.testing.assert_array_equal(step.state["fc/W"], before)
    step.store.set({"rate": 0.1})
    step(*batch())
    assert not np.array_equal(step.state["fc/W"], before)


def test_a_handle_in_the_loss_is_trained_through_both_uses(X, fc):
    loss, _ = squared(fc(X))
    step = train(loss + 0.5 * (fc.W**2).sum(), sgd(0.1))
    x, y = batch()
    W, b = step.state["fc/W"], step.state["fc/b"]
    step(x, y)
    gradient = 2 * x.T @ (x @ W + b - y) / 6 + W
    np.testing.assert_allclose(step.state["fc/W"], W - 0.1 * gradient, rtol=1e-12)


def test_parameters_of_no_layer_are_trained_too(X):
    w = Slot("w", Role.PARAMETER, "float64", (2,), Zeros()).handle
    step = train(((X @ w - 1) ** 2).mean(), adam(0.1))
    assert next(iter(step.state)) == "w"
    losses = [float(step(np.eye(2))) for _ in range(50)]
    assert losses[-1] < 0.01 * losses[0]


def test_givens_and_other_options_reach_the_compiler(X, fc):
    loss, target = squared(fc(X))
    x, y = batch()
    data, index = pytensor.shared(x), pt.lscalar("index")
    options = {**PYTHON, "givens": {X: data[:index]}, "name": "training"}
    step = compile_train(loss, sgd(0.1), inputs=[index, target], seed=0, compile_kwargs=options)
    wanted = train(loss, sgd(0.1))
    assert step(4, y[:4]) == wanted(x[:4], y[:4])
    assert step.function.name == "training"


def test_the_state_of_another_optimizer_is_refused_listing_both(X, fc):
    loss, _ = squared(fc(X))
    state = train(loss, adam(0.1)).state
    with pytest.raises(
        ValueError, match=r"lacks the optimizer leaves sgd/velocity/fc/W.*has adam/first_moment/fc/W"
    ):
        train(loss, sgd(0.1, momentum=0.9), state=state)
    fresh = train(loss, sgd(0.1, momentum=0.9), state=state.drop(Role.OPTIMIZER))
    np.testing.assert_array_equal(fresh.state["fc/W"], state["fc/W"])
    assert isinstance(state, State)
