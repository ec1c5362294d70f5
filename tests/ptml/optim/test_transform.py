"""Transforms and chains: positions, and every way to misplace something."""

from __future__ import annotations

import copy
import pickle

import attrs
import numpy as np
import pytensor.tensor as pt
import pytest

from ptml.optim import (
    Chain,
    Gradients,
    Rule,
    Steps,
    Transform,
    adam,
    add_weight_decay,
    chain,
    clip_by_global_norm,
    clip_by_value,
    scale,
    sgd,
    take_step,
    trace,
)


class Doubled(Transform):
    def apply(self, updates, parameters):
        return updates.with_amounts({p: 2 * amount for p, amount in updates.amounts.items()})


def halved(updates, parameters):
    return updates.with_amounts({p: amount / 2 for p, amount in updates.amounts.items()})


def test_a_chain_applies_its_transforms_from_left_to_right(run):
    problem = run(chain(clip_by_value(-1.0, 1.0), scale(3.0), sgd(0.1)), p=0.0)
    np.testing.assert_allclose(problem.follow([5.0]), [-0.3])
    problem = run(chain(scale(3.0), clip_by_value(-1.0, 1.0), sgd(0.1)), p=0.0)
    np.testing.assert_allclose(problem.follow([5.0]), [-0.1])


def test_a_clip_ahead_of_adam_spares_the_moments_and_one_behind_does_not(run):
    ahead = run(chain(clip_by_global_norm(1.0), adam(1e-3)), p=0.0)
    behind = run(chain(adam(1e-3), clip_by_global_norm(1.0)), p=0.0)
    for problem in (ahead, behind):
        problem(1e6)
    np.testing.assert_allclose(ahead["adam/first_moment/p"], 0.1)
    np.testing.assert_allclose(behind["adam/first_moment/p"], 1e5)
    # Both steps are about the rate: adam has brought the spike to that size already.
    np.testing.assert_allclose([ahead["p"], behind["p"]], [-1e-3, -1e-3], rtol=1e-6)


def test_decay_means_what_its_place_says(run):
    def after_one_step(*transforms):
        return float(run(chain(*transforms), p=1.0).follow([0.0])[0])

    assert after_one_step(adam(1e-3), add_weight_decay(0.01)) == 0.99
    assert after_one_step(add_weight_decay(0.01), adam(1e-3)) == pytest.approx(0.999000000999999, abs=1e-15)
    terminal = after_one_step(adam(1.0), add_weight_decay(0.01), scale(1e-3))
    assert terminal == pytest.approx(0.99999, abs=1e-15)
    assert (1 - after_one_step(adam(1.0), scale(1e-3), add_weight_decay(0.01))) / (
        1 - terminal
    ) == pytest.approx(1000)


def test_chains_of_chains_are_flat():
    clip, rule, last = clip_by_global_norm(1.0), adam(1e-3), scale(0.5)
    assert chain(chain(clip, rule), last).transforms == (clip, rule, last)
    assert chain(chain(clip, rule), last) == chain(clip, rule, last)


def test_a_chain_is_a_value():
    rule = chain(clip_by_global_norm(2.0), adam(0.01))
    assert rule == chain(clip_by_global_norm(2.0), adam(0.01))
    assert hash(rule) == hash(chain(clip_by_global_norm(2.0), adam(0.01)))
    assert repr(rule) == "Chain(ClipByGlobalNorm(2.0), Adam(0.01))"
    assert pickle.loads(pickle.dumps(rule)) == copy.deepcopy(rule) == rule
    assert attrs.evolve(rule, transforms=(adam(0.01),)) == chain(adam(0.01))
    with pytest.raises(AttributeError):
        rule.transforms = ()


def test_transforms_of_the_users_and_plain_functions_join_in(run):
    problem = run(chain(Doubled(), halved, sgd(0.1), halved, halved), p=0.0)
    np.testing.assert_allclose(problem.follow([1.0]), [-0.025])


def test_a_rule_of_the_users_decides(run):
    class SignDescent(Rule):
        rate: float

        def decide(self, gradients, parameters):
            return gradients.to_steps({p: -self.rate * pt.sign(g) for p, g in gradients.amounts.items()})

    np.testing.assert_allclose(run(SignDescent(rate=0.5), p=0.0).follow([3.0, -0.1, -7.0]), [-0.5, 0.0, 0.5])


def test_a_transform_takes_a_loss_gradients_or_updates(new_parameter):
    p = new_parameter([1.0, 2.0])
    for given in ((p**2).sum(), [2 * p], {p: 2 * p}, Gradients({p: 2 * p})):
        assert type(clip_by_value()(given, [p])) is Gradients
        assert type(sgd(0.1)(given, [p])) is Steps
    assert type(clip_by_value()(Steps({p: p}), [p])) is Steps


def test_only_what_has_an_amount_is_moved(new_parameter):
    p, q = new_parameter(1.0, "p"), new_parameter(1.0, "q")
    assert list(adam()(Gradients({q: q}), [p, q]).amounts) == [q]


def test_an_empty_chain_is_refused():
    with pytest.raises(ValueError, match=r"chain\(\) has nothing to compose"):
        chain()


def test_what_is_no_transform_is_refused():
    with pytest.raises(TypeError, match=r"A chain composes transforms; got 0\.1 at position 1"):
        chain(adam(), 0.1)
    with pytest.raises(TypeError, match=r"at position 0\. Write Sgd\(\.\.\.\)"):
        chain(sgd)


def test_a_rule_behind_a_rule_is_refused_when_the_chain_is_made():
    with pytest.raises(
        ValueError, match=r"A chain holds one rule, .* this one holds Adam\(0.1\), then Sgd\(0.2\)"
    ):
        chain(adam(0.1), scale(0.5), sgd(0.2))


def test_a_rule_that_is_given_steps_says_so(new_parameter):
    p = new_parameter(1.0)
    with pytest.raises(ValueError, match=r"Sgd\(0\.1\) stands behind another rule"):
        chain(lambda updates, parameters: adam()(updates, parameters), sgd(0.1))([p], [p])
    with pytest.raises(ValueError, match=r"Adam\(\) stands behind another rule"):
        adam()(Steps({p: p}), [p])


def test_one_transform_twice_in_a_chain_is_refused_and_two_equal_ones_are_not():
    velocity = trace(0.9)
    with pytest.raises(ValueError, match=r"Trace\(\) is in the chain twice, as one object"):
        chain(velocity, chain(velocity, sgd(0.1)))
    assert len(chain(clip_by_value(), sgd(0.1), clip_by_value()).transforms) == 3


def test_a_chain_that_ends_in_gradients_is_no_rule_of_a_training_step(new_parameter):
    p = new_parameter(1.0)
    clip = chain(clip_by_global_norm(1.0), scale(0.1))
    assert type(clip([p], [p])) is Gradients
    with pytest.raises(
        ValueError, match=r"Chain\(ClipByGlobalNorm\(\), Scale\(0.1\)\) ends in gradients: nothing"
    ):
        take_step(clip, [p], [p])
    with pytest.raises(ValueError, match=r"halved ends in gradients"):
        take_step(halved, Gradients({p: p}), [p])


def test_a_transform_that_returns_something_else_is_named(new_parameter):
    p = new_parameter(1.0)

    class Forgetful(Transform):
        def apply(self, updates, parameters):
            pass

    def native(updates, parameters):
        return {p: p - 0.1}

    with pytest.raises(TypeError, match=r"Forgetful\(\) returned NoneType\. A transform returns Updates"):
        Forgetful()([p], [p])
    with pytest.raises(TypeError, match=r"native returned dict\. A transform returns Updates"):
        chain(native, sgd())([p], [p])
    with pytest.raises(TypeError, match=r"native returned dict\. .* Steps\(\{parameter: step\}\)"):
        take_step(native, [p], [p])


def test_a_transform_must_say_what_it_does():
    class Idle(Transform):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Idle()


def test_a_chain_can_be_made_by_its_class():
    assert eval("Chain(Scale(0.5), Sgd(0.1))", {"Chain": Chain, "Scale": scale, "Sgd": sgd}) == chain(
        scale(0.5), sgd(0.1)
    )


@pytest.mark.parametrize("rule", [adam, sgd])
def test_a_rule_that_was_not_called_is_refused_with_the_call_to_write(rule):
    name = rule.__name__.lower()
    with pytest.raises(TypeError, match=rf"Call it with its hyperparameters, such as {name}\(1e-3\)"):
        take_step(rule, pt.scalar("loss"), [])
