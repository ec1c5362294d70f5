"""Lookahead: slow weights that follow the fast ones."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest

from ptml import function
from ptml.optim import (
    Gradients,
    Lookahead,
    Steps,
    adam,
    averaged,
    chain,
    clip_by_global_norm,
    ema,
    lookahead,
    scalar_state,
    scale,
    sgd,
    take_step,
    trace,
)

GRADIENTS = np.random.default_rng(0).normal(size=(100, 3))


def test_every_few_steps_the_weights_go_part_of_the_way_back(run):
    problem = run(lookahead(sgd(1.0), 2, 0.5), p=0.0)
    np.testing.assert_array_equal(problem.follow([1.0] * 5), [-1.0, -1.0, -2.0, -2.0, -3.0])
    assert problem["lookahead/slow/p"] == -2.0
    assert problem["lookahead/step_count"] == 5


def test_it_agrees_with_optax_over_a_hundred_steps(run):
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    problem = run(lookahead(adam(0.1), sync_period=6, slow_step_size=0.3), p=[1.0, 2.0, 3.0])
    ours = problem.follow(GRADIENTS)
    with jax.enable_x64(True):
        rule = optax.lookahead(optax.adam(0.1), 6, 0.3)
        parameters = optax.LookaheadParams.init_synced(jax.numpy.array([1.0, 2.0, 3.0]))
        state = rule.init(parameters)
        theirs = []
        for gradient in GRADIENTS:
            moves, state = rule.update(jax.numpy.asarray(gradient), state, parameters)
            parameters = optax.apply_updates(parameters, moves)
            theirs.append(np.asarray(parameters.fast))
        slow = np.asarray(parameters.slow)
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    np.testing.assert_allclose(problem["lookahead/slow/p"], slow, rtol=1e-10)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_after_a_synchronization_the_two_are_one_to_the_last_bit(run, dtype):
    problem = run(lookahead(adam(0.1), 3, 0.3), dtype=dtype, p=[1.0, 2.0, 3.0])
    for k, gradient in enumerate(GRADIENTS[:12], 1):
        problem(gradient)
        assert problem["p"].dtype == dtype
        same = (problem["p"] == problem["lookahead/slow/p"]).all()
        assert same == (k % 3 == 0)


def test_slow_weights_are_evaluated_by_the_swap(run):
    problem = run(lookahead(sgd(1.0), 2), p=1.0)
    assert problem["lookahead/slow/p"] == 1.0
    problem(1.0)
    assert averaged(problem.program, "lookahead/slow")["p"] == 1.0
    assert problem["p"] == 0.0


def test_it_resumes_between_synchronizations(new_parameter):
    p, g = new_parameter([1.0, 2.0, 3.0]), pt.dvector("g")

    def compiled(**options):
        rule = lookahead(adam(0.1), 4)
        return function([g], [], updates=take_step(rule, [g], [p]), mode="FAST_COMPILE", **options)

    whole, half = compiled(seed=0), compiled(seed=0)
    for gradient in GRADIENTS[:6]:
        whole(gradient)
    for gradient in GRADIENTS[:3]:
        half(gradient)
    resumed = compiled(state=half.state)
    for gradient in GRADIENTS[3:6]:
        resumed(gradient)
    assert resumed.state == whole.state


def test_chains_and_functions_are_rules_of_it(run):
    def halved(updates, parameters):
        return updates.with_amounts({q: amount / 2 for q, amount in updates.amounts.items()})

    def descend(gradients, parameters):
        return gradients.to_steps({q: -g for q, g in gradients.amounts.items()})

    inside = chain(clip_by_global_norm(1.0), trace(0.5), sgd(1.0), halved)
    np.testing.assert_allclose(run(lookahead(inside, 2), p=0.0).follow([2.0, 2.0]), [-0.5, -0.625])
    np.testing.assert_array_equal(run(lookahead(descend, 2), p=0.0).follow([2.0, 2.0]), [-2.0, -2.0])
    ahead = chain(scale(2.0), lookahead(sgd(1.0), 2), ema(0.0))
    np.testing.assert_array_equal(run(ahead, p=0.0).follow([1.0, 1.0], "ema/p"), [-2.0, -2.0])


def test_the_period_may_be_symbolic_and_the_share_a_leaf(new_parameter):
    p, period = new_parameter(0.0), pt.lscalar("period")
    rule = lookahead(sgd(1.0), period, scalar_state("share", 1.0))
    step = function(
        [period], [], updates=take_step(rule, [pt.constant(1.0)], [p]), seed=0, mode="FAST_COMPILE"
    )
    step(1)
    step.store.set({"share": 0.5})
    step(2)
    assert step.state["p"] == -1.5
    with pytest.raises(ValueError, match=r"Lookahead: sync_period must be a whole number of at least 1, and"):
        step(0)
    step.store.set({"share": 0.0})
    with pytest.raises(ValueError, match=r"slow_step_size must be a number above 0 and at most 1, and this"):
        step(2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lookahead(sgd(), 0), "sync_period must be a whole number of at least 1; got 0"),
        (lambda: lookahead(sgd(), 2.5), "sync_period must be a whole number of at least 1; got 2.5"),
        (lambda: lookahead(sgd(), 2, 0.0), "slow_step_size must be a number above 0 and at most 1; got 0.0"),
        (lambda: lookahead(sgd(), 2, 1.5), "slow_step_size must be a number above 0 and at most 1; got 1.5"),
    ],
)
def test_impossible_numbers_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_is_no_rule_is_refused(new_parameter):
    p = new_parameter(1.0)
    with pytest.raises(
        TypeError, match=r"The rule is the class Sgd. Call it .* such as sgd\(1e-3\)|class sgd"
    ):
        lookahead(sgd)
    with pytest.raises(TypeError, match=r"Lookahead: rule must be a rule, such as adam\(1e-3\), .* got 0.1"):
        lookahead(0.1)
    with pytest.raises(ValueError, match=r"Chain\(ClipByGlobalNorm\(\), Scale\(0.5\)\) ends in gradients"):
        lookahead(chain(clip_by_global_norm(), scale(0.5)))([p], [p])
    with pytest.raises(ValueError, match=r"ClipByGlobalNorm\(\) ends in gradients"):
        lookahead(clip_by_global_norm())([p], [p])


def test_it_is_a_rule_and_stands_behind_none(new_parameter):
    p = new_parameter(1.0)
    with pytest.raises(
        ValueError, match=r"A chain holds one rule, .* this one holds Sgd\(\), then Lookahead"
    ):
        chain(sgd(), lookahead(adam()))
    with pytest.raises(ValueError, match=r"Lookahead\(Sgd\(\)\) stands behind another rule"):
        lookahead(sgd())(Steps({p: p}), [p])
    assert type(lookahead(sgd())(Gradients({p: p}), [p])) is Steps


def test_what_would_move_the_parameters_behind_it_is_refused():
    with pytest.raises(
        ValueError, match=r"Lookahead\(Sgd\(\)\) has to stand last .* Here Scale\(0.5\) stands"
    ):
        chain(lookahead(sgd()), scale(0.5))


def test_one_transform_ahead_of_it_and_inside_it_is_refused():
    velocity = trace(0.9)
    with pytest.raises(ValueError, match=r"Trace\(\) is in the chain twice, as one object"):
        chain(velocity, lookahead(chain(velocity, sgd(0.1))))


def test_it_is_a_value():
    assert lookahead(adam(0.1), 5) == Lookahead(adam(0.1), sync_period=5)
    assert (
        repr(lookahead(adam(0.1), 5, 0.8, namespace="far")) == "Lookahead(Adam(0.1), 5, 0.8, namespace='far')"
    )
