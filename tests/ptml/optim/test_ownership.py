"""Who owns optimizer state: the outermost transform that runs, by place, name and parameter."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import ptml
from ptml import function
from ptml.optim import (
    Steps,
    adam,
    adam_updates,
    chain,
    clip_by_global_norm,
    cosine_schedule,
    counter,
    get_gradients,
    reuses_state,
    scalar_state,
    scale_by_schedule,
    sgd,
    state_for,
    take_step,
    trace,
)
from ptml.optim.ownership import key_for_draws, sharing_clocks
from ptml_state import Role


@pytest.fixture
def p(new_parameter):
    return new_parameter([1.0, 2.0])


def state(updates):
    return list(updates.state)


def test_a_rule_called_twice_has_one_set_of_state(p):
    rule = adam(0.1)
    assert state(rule([p], [p])) == state(rule([2 * p], [p]))
    assert state(rule([p], [p])) != state(adam(0.1)([p], [p]))


def test_a_chain_called_twice_has_one_set_of_state(p):
    rule = chain(clip_by_global_norm(1.0), trace(0.9), adam(0.1))
    assert state(rule([p], [p])) == state(rule([p], [p]))
    assert len(state(rule([p], [p]))) == 3


def test_two_programs_over_one_store_share_the_momentum_of_their_chain(p, run):
    rule = chain(trace(0.5), sgd(1.0))
    one = function([], [], updates=take_step(rule, [pt.ones(2)], [p]), seed=0)
    g = pt.dvector("g")
    other = function([g], [], updates=take_step(rule, [g], [p]), state=one)
    one()
    other(np.zeros(2))
    np.testing.assert_allclose(one.state["p"], [-0.5, 0.5])
    np.testing.assert_allclose(one.state["trace/velocity/p"], [0.5, 0.5])


def test_two_programs_over_two_stores_do_not(p):
    rule = chain(trace(0.5), sgd(1.0))
    steps = take_step(rule, [pt.ones(2)], [p])
    one, other = function([], [], updates=steps, seed=0), function([], [], updates=steps, seed=0)
    one()
    np.testing.assert_array_equal(other.state["trace/velocity/p"], [0.0, 0.0])


def test_a_transform_inside_a_chain_has_other_state_than_alone(p):
    rule = adam(0.1)
    assert not set(state(rule([p], [p]))) & set(state(chain(rule)([p], [p])))


def test_two_equal_transforms_in_a_chain_do_not_share_and_compiling_says_namespace(p):
    rule = chain(trace(0.9), trace(0.5), sgd(0.1))
    assert len(set(state(rule([p], [p])))) == 2
    message = r"(?s)address 'trace/velocity/p'.*Trace\(\).*Trace\(0\.5\).*namespace"
    with pytest.raises(ValueError, match=message):
        function([], [], updates=rule([pt.ones(2)], [p]), seed=0)


def test_two_transforms_with_namespaces_live_side_by_side(run):
    rule = chain(trace(0.9, namespace="fast"), trace(0.5, namespace="slow"), sgd(0.1))
    problem = run(rule, p=0.0)
    problem.follow([1.0, 1.0])
    np.testing.assert_allclose(problem["fast/velocity/p"], 1.9)
    np.testing.assert_allclose(problem["slow/velocity/p"], 2.4)


def test_two_rules_on_one_store_are_refused_by_address(p):
    one = function([], [], updates=adam(0.1)([pt.ones(2)], [p]), seed=0)
    with pytest.raises(ValueError, match=r"adam/(step_count|first_moment/p)"):
        function([], [], updates=adam(0.2)([pt.ones(2)], [p]), state=one)


def test_a_bare_function_allocates_afresh(p):
    assert not set(state(adam_updates([p], [p]))) & set(state(adam_updates([p], [p])))
    assert state_for(p, "m") is not state_for(p, "m")
    assert counter("c") is not counter("c")
    assert scalar_state("s") is not scalar_state("s")


def test_a_function_under_reuses_state_has_one_set_of_state(p):
    @reuses_state
    def rule(loss, parameters):
        return adam_updates(loss, parameters, 0.1)

    assert state(rule([p], [p])) == state(rule([p], [p]))
    assert state(rule([p], [p])) == state(rule(loss=[p], parameters=[p]))


def test_two_wrappings_of_one_function_are_two_owners(p):
    def rule(loss, parameters):
        return adam_updates(loss, parameters, 0.1)

    one, other = reuses_state(rule), reuses_state(rule)
    assert one == other
    assert not set(state(one([p], [p]))) & set(state(other([p], [p])))


def test_a_function_under_reuses_state_trains(run):
    @reuses_state
    def heavy_ball(loss, parameters):
        steps, new = {}, {}
        for parameter, gradient in zip(parameters, get_gradients(loss, parameters), strict=True):
            velocity = state_for(parameter, "heavy_ball/velocity")
            new[velocity] = 0.9 * velocity + gradient
            steps[parameter] = -0.1 * new[velocity]
        return Steps(steps, new)

    np.testing.assert_allclose(run(heavy_ball, p=0.0).follow([1, 1]), [-0.1, -0.29])
    np.testing.assert_allclose(
        run(chain(scale_by_schedule(lambda k: 2.0), heavy_ball), p=0.0).follow([1]), [-0.2]
    )


def test_plain_functions_in_a_chain_have_state_by_their_place(p):
    def counted(updates, parameters):
        return updates.with_state({state_for(parameters[0], "x"): parameters[0]})

    rule = chain(counted, counted, sgd(0.1))
    first, second = state(rule([p], [p]))
    assert first is not second
    assert state(rule([p], [p])) == [first, second]


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match=r"reuses_state takes a function of \(loss, parameters\)"):
        reuses_state(3)


def test_a_failing_transform_leaves_nobody_running(p):
    def fails(updates, parameters):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        chain(fails, sgd())([p], [p])
    assert state_for(p, "m") is not state_for(p, "m")


def test_copies_and_pickles_of_a_transform_have_state_of_their_own(p):
    rule = chain(adam(0.1))
    before = state(rule([p], [p]))
    for other in (copy.copy(rule), copy.deepcopy(rule), pickle.loads(pickle.dumps(rule))):
        assert other == rule
        assert not set(before) & set(state(other([p], [p])))


def test_state_is_shaped_and_typed_like_its_parameter(new_parameter):
    weight = new_parameter([[1.0, 2.0]], "fc/W", "float32")
    slot = state_for(weight, "adam/first_moment", 0.5).slot
    assert (slot.address, slot.role, slot.dtype, slot.shape) == (
        "adam/first_moment/fc/W",
        Role.OPTIMIZER,
        "float32",
        (1, 2),
    )
    np.testing.assert_array_equal(
        slot.initializer(None, slot.shape, slot.dtype), np.full((1, 2), 0.5, "float32")
    )
    with pytest.raises(TypeError, match=r"state_for makes state for a parameter: give its handle"):
        state_for("fc/W", "adam/first_moment")


def test_state_may_start_at_its_parameters_values(new_parameter):
    p, other = new_parameter([1.0, 2.0], dtype="float32"), new_parameter(0.0, "q")
    copied = state_for(p, "slow", p, dtype="float64")
    program = function([], [p.sum()], updates={copied: copied + 1.0}, seed=0)
    assert program.state["slow/p"].dtype == np.float64
    np.testing.assert_array_equal(program.state["slow/p"], [1.0, 2.0])
    with pytest.raises(TypeError, match=r"fill_value is a number, or the parameter 'p' itself; got"):
        state_for(p, "slow", other)


def test_a_key_of_a_transforms_is_drawn_by_the_programs_seed():
    key = key_for_draws("shake/key")
    assert (key.slot.address, key.slot.role, key.slot.dtype, key.slot.shape) == (
        "shake/key",
        Role.GENERATOR,
        "uint32",
        (4,),
    )
    one, same, other = (function([], ptml.random.bits(key), seed=seed) for seed in (0, 0, 1))
    assert one() == same() != other()


def test_clocks_are_shared_side_by_side_and_not_within_one_side(p):
    @reuses_state
    def both(loss, parameters):
        with sharing_clocks({}) as read:
            first, again = counter("sgd/step_count"), counter("sgd/step_count")
        with sharing_clocks(read):
            second = counter("sgd/step_count")
        return first, again, second

    first, again, second = both([p], [p])
    assert first is again is second
    assert both([p], [p]) == (first, again, second)


def test_a_scalar_is_a_leaf_of_floatx_under_its_name():
    with pytensor.config.change_flags(floatX="float32"):
        slot = scalar_state("schedule/scale", 1.0).slot
    assert (slot.address, slot.role, slot.dtype, slot.shape) == (
        "schedule/scale",
        Role.OPTIMIZER,
        "float32",
        (),
    )


def test_a_counter_is_a_clock_of_whole_numbers_that_starts_at_zero():
    slot = counter("warmup/step_count").slot
    assert (slot.address, slot.role, slot.dtype, slot.shape) == ("warmup/step_count", Role.CLOCK, "int64", ())
    assert slot.initializer(None, (), "int64") == 0


def test_state_says_which_transform_declared_it(p):
    velocity = trace(0.9)
    [handle] = state(chain(velocity, sgd(0.1))([p], [p]))
    assert handle.slot.owner is velocity
    assert handle.slot.of is p.slot


def test_every_clock_of_a_chain_counts(run):
    rule = chain(scale_by_schedule(cosine_schedule(1.0, 4), namespace="mine"), adam(0.1))
    problem = run(rule, p=0.0)
    problem.follow([1.0, 1.0])
    assert (problem["mine/step_count"], problem["adam/step_count"]) == (2, 2)


def test_a_forgotten_rule_is_freed(p):
    def slots_kept():
        return sum(
            1 for one in gc.get_objects() if type(one).__name__ == "Slot" and one.name == "gone/velocity"
        )

    for _ in range(3):
        trace(0.9, namespace="gone")([p], [p])
    gc.collect()
    assert slots_kept() == 0
