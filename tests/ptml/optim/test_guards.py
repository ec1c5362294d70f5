"""Guards: what a step that is thrown away leaves, what it is thrown away for, and when that is too much."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.initializers import Constant, Zeros
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import (
    SkipCondition,
    SkipIf,
    Steps,
    Transform,
    adam,
    adam_updates,
    apply_if_finite,
    chain,
    clip_by_global_norm,
    compile_train,
    cosine_schedule,
    counter,
    large_step,
    nonfinite,
    reduce_on_plateau,
    reuses_state,
    scalar_state,
    scale_by_schedule,
    sgd,
    skip_if,
    trace,
)
from ptml_state import Role, Slot, State

PYTHON = {"mode": Mode(linker="py", optimizer="fast_compile")}
COUNTS = ["skip_if/consecutive_skips", "skip_if/total_skips"]


def changed(before, after):
    """Give the addresses of the leaves that differ, to the last bit."""
    assert list(before) == list(after)
    return [a for a in before if np.asarray(before[a]).tobytes() != np.asarray(after[a]).tobytes()]


def network():
    return Sequential(
        BatchNorm("bn", n_in=2), Dropout("drop", p=0.5), Linear("out", n_in=2, n_out=1, bias=False)
    )


def train(rule, *, net=None, **options):
    X = Input("X", (None, 2))
    loss, _ = supervised_loss((net or network())(X), SquaredError())
    options = {"seed": 0} | options if "state" not in options else options
    return compile_train(
        loss, rule, **({"compile_kwargs": PYTHON} | options if "backend" not in options else options)
    )


def batch(seed=0, dtype="float64"):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(4, 2)).astype(dtype), rng.normal(size=(4, 1)).astype(dtype)


def bad(seed=0, dtype="float64"):
    x, y = batch(seed, dtype)
    return np.full_like(x, np.nan), y


# What a step that is thrown away leaves.


@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_a_batch_of_nan_changes_nothing_but_counts_and_keys_on_every_backend(backend, float32):
    # Cases C11, C46 and C48, in the one dtype that all backends have.
    mine = counter("mine/step_count")
    rule = apply_if_finite(adam(lambda count: cosine_schedule(0.1, 10)(mine)), max_consecutive_skips=2)
    net = network()
    step, expected = train(rule, net=net, backend=backend), train(rule, net=net)
    assert expected.state == step.state
    for k, make in enumerate([batch, bad, batch, bad, bad]):
        before, data = step.state, make(k, "float32")
        loss = step(*data)
        expected(*data)
        if make is bad:
            assert np.isnan(loss)
            moved = [*COUNTS, "mine/step_count", "drop/key"]
            assert set(changed(before, step.state)) == set(moved)
        assert step.state.allclose(expected.state, rtol=1e-4, atol=1e-5)
        if k == 1:
            saved = State.of(step.state.leaves)
    assert [step.state[a] for a in [*COUNTS, "adam/step_count", "mine/step_count"]] == [2, 3, 2, 5]

    # One too many: the call raises, writes nothing at all, and training goes on.
    before = step.state
    for _ in range(2):
        with pytest.raises(
            FloatingPointError, match=r"max_consecutive_skips=2.*would have written inf or NaN"
        ):
            step(*bad(5, "float32"))
        assert changed(before, step.state) == []
    step(*batch(6, "float32"))
    assert step.state["skip_if/consecutive_skips"] == 0
    assert step.state["skip_if/total_skips"] == 3

    # Saved after the first skip and rebuilt, it goes on bit for bit.
    resumed = train(rule, net=net, backend=backend, state=saved)
    for k, make in [(2, batch), (3, bad), (4, bad), (6, batch)]:
        resumed(*make(k, "float32"))
    assert changed(step.state, resumed.state) == []


def test_the_model_that_was_poisoned_without_a_guard_is_not_with_one():
    # Case C11: adam alone skips nothing, and the statistics were lost even where its step was skipped.
    free, guarded = train(adam(0.1)), train(apply_if_finite(adam(0.1)))
    for step in (free, guarded):
        step(*batch())
        step(*bad())
    assert not np.isfinite(free.state["bn/running_mean"]).any()
    assert all(np.isfinite(leaf).all() for leaf in guarded.state.values())
    assert np.isfinite(guarded(*batch(1)))


def test_a_statistic_alone_that_is_not_finite_throws_the_step_away():
    # The loss does not depend on what the norm gives, but reads it: its gradient is zero, its mean infinite.
    X, bn, fc = Input("X", (None, 2)), BatchNorm("bn", n_in=2), Linear("fc", n_in=2, n_out=1)
    loss = (fc(pt.clip(X, -1, 1)) ** 2).mean() + pt.switch(pt.isnan(bn(X)), 0.0, 0.0).sum()
    step = compile_train(loss, apply_if_finite(sgd(0.1)), seed=0, compile_kwargs=PYTHON)
    x = np.array([[1.0, 2.0], [np.inf, 0.0]])
    before = step.state
    assert np.isfinite(step(x))
    assert changed(before, step.state) == COUNTS
    step(np.eye(2))
    assert {"bn/running_mean", "fc/W"} <= set(changed(before, step.state))


def test_a_moment_alone_that_is_not_finite_throws_the_step_away(run):
    # v overflows, and the step of g / sqrt(v) is zero.
    problem = run(apply_if_finite(adam(0.1)), dtype="float32", p=1.0)
    problem(3e38)
    assert (problem["p"], problem["adam/second_moment/p"], problem["skip_if/total_skips"]) == (1.0, 0.0, 1)


def test_the_step_after_a_skipped_one_is_the_one_of_a_run_that_never_met_it(run):
    good, other = run(apply_if_finite(adam(0.1)), p=[1.0, 2.0]), run(adam(0.1), p=[1.0, 2.0])
    for gradient in ([0.5, -1.0], [np.nan, 1.0], [0.3, np.inf], [2.0, 0.0]):
        good(gradient)
        if np.isfinite(gradient).all():
            other(gradient)
    np.testing.assert_array_equal(good["p"], other["p"])
    np.testing.assert_array_equal(good["adam/first_moment/p"], other["adam/first_moment/p"])
    assert good["adam/step_count"] == 2


def test_clocks_of_a_rule_stand_still_and_those_of_the_user_count_every_call(run):
    # Case C46: the rule's own count is 2 after three calls, that of a clock of the user's 3.
    clock = counter("schedule/step_count")
    steady = scale_by_schedule(lambda count: 1.0 + 0.0 * count)
    rule = apply_if_finite(chain(steady, adam(lambda count: 0.1 * (clock + 1))))
    problem = run(rule, p=0.0)
    for gradient in (1.0, np.nan, 1.0):
        problem(gradient)
    assert problem["adam/step_count"] == problem["scale_by_schedule/step_count"] == 2
    assert problem["schedule/step_count"] == 3
    np.testing.assert_allclose(problem["p"], -0.1 - 0.3, rtol=1e-7)


@pytest.mark.parametrize("make", [lambda f: f, reuses_state], ids=["function", "reuses_state"])
def test_the_clock_of_a_plain_function_is_the_rules(run, make):
    problem = run(apply_if_finite(make(lambda loss, parameters: adam_updates(loss, parameters, 0.1))), p=0.0)
    for gradient in (1.0, np.nan, 1.0):
        problem(gradient)
    assert problem["adam/step_count"] == 2


def test_what_else_is_written_is_held_back_too_but_for_shared_variables():
    import pytensor

    best = Slot("best", Role.OPTIMIZER, "float64", (), Constant(5.0)).handle
    ticks, calls = counter("ticks"), pytensor.shared(0)
    X, fc = Input("X", (None, 2)), Linear("fc", n_in=2, n_out=1)
    loss, _ = supervised_loss(fc(X), SquaredError())
    further = {best: pt.minimum(best, 1.0), ticks: ticks + 10, calls: calls + 1}
    step = compile_train(
        loss, apply_if_finite(sgd(0.1)), extra_updates=further, seed=0, compile_kwargs=PYTHON
    )
    step(*bad())
    assert (step.state["best"], step.state["ticks"], calls.get_value()) == (5.0, 10, 1)
    step(*batch())
    assert (step.state["best"], step.state["ticks"], calls.get_value()) == (1.0, 20, 2)


def test_a_guard_works_in_any_mapping_of_updates():
    # The verdict travels with each new value, so it is not lost where updates are joined.
    p, q = (Slot(name, Role.PARAMETER, "float64", (), Zeros()).handle for name in "pq")
    g = pt.dscalar("g")
    rule = apply_if_finite(adam(0.1))
    for updates in (rule([g], [p]), dict(rule([g], [p])), [*rule([g], [p]).items(), (q, q + g)]):
        program = ptml.function([g], [], updates=updates, seed=0, **PYTHON)
        before = program.state
        program(np.nan)
        assert changed(before, program.state) == COUNTS
        program(1.0)
        np.testing.assert_allclose(program.state["p"], -0.1, rtol=1e-6)


def test_two_guards_in_one_program_each_hold_back_all_of_it(new_parameter):
    p, q = new_parameter(0.0, "p"), new_parameter(0.0, "q")
    g, h = pt.dscalar("g"), pt.dscalar("h")
    one = apply_if_finite(adam(0.1), namespace="one")([g], [p])
    two = apply_if_finite(sgd(0.1), namespace="two")([h], [q])
    program = ptml.function([g, h], [], updates=[*one.items(), *two.items()], seed=0, **PYTHON)
    program(1.0, np.nan)
    state = program.state
    assert (state["p"], state["q"], state["adam/step_count"]) == (0.0, 0.0, 0)
    # Each looks at everything that would be written.
    assert (state["one/total_skips"], state["two/total_skips"]) == (1, 0)


def test_an_output_that_shows_a_new_value_shows_what_is_written(new_parameter):
    p, g = new_parameter(1.0), pt.dscalar("g")
    steps = apply_if_finite(sgd(1.0))([g], [p])
    program = ptml.function([g], steps[p], updates=steps, seed=0, **PYTHON)
    assert [float(program(value)) for value in (0.25, np.nan, 0.25)] == [0.75, 0.75, 0.5]
    watching = ptml.function([g], steps[p], state=program, **PYTHON)
    assert float(watching(0.25)) == 0.25
    assert program.state["p"] == 0.5


def test_pure_programs_and_programs_over_one_store_skip_alike():
    net, rule = network(), apply_if_finite(adam(0.1))
    step = train(rule, net=net)
    other = train(rule, net=net, state=step)
    state = step.state
    _, after = step.pure(state, *bad())
    assert set(changed(state, after)) == {*COUNTS, "drop/key"}
    step(*bad())
    other(*bad())
    assert step.state["skip_if/consecutive_skips"] == 2
    assert step.state["skip_if/total_skips"] == 2


def test_an_exported_step_skips_too(new_parameter):
    pytest.importorskip("jax")
    p, g = new_parameter(1.0, dtype="float32"), pt.fscalar("g")
    steps = apply_if_finite(adam(0.1))([g], [p])
    step = ptml.function([g], [], updates=steps, seed=0, **PYTHON)
    _, state = step.to_jax()(step.state, np.float32(np.nan))
    assert (state["p"], state["adam/step_count"], state["skip_if/total_skips"]) == (1.0, 0, 1)


# What a step is thrown away for.


def test_clipping_does_not_rescue_an_infinite_coordinate_and_a_guard_does(run):
    rule = chain(clip_by_global_norm(1.0), sgd(1.0))
    free, guarded = run(rule, p=[1.0, 2.0]), run(apply_if_finite(rule), p=[1.0, 2.0])
    for problem in (free, guarded):
        problem([0.5, np.inf])
    # The whole step and one coordinate are lost, and nothing raises.
    np.testing.assert_array_equal(free["p"], [1.0, np.nan])
    np.testing.assert_array_equal(guarded["p"], [1.0, 2.0])
    guarded([0.5, 0.0])
    np.testing.assert_array_equal(guarded["p"], [0.5, 2.0])


def test_a_large_step_is_thrown_away_where_its_norm_reaches_the_bound(run):
    problem = run(skip_if(sgd(1.0), large_step(5.0)), p=[0.0, 0.0])
    for gradient, skips in (([3, 3.9], 0), ([3, 4], 1), ([5, 0], 2), ([np.nan, 0], 3), ([0, -np.inf], 4)):
        problem(gradient)
        assert problem["skip_if/total_skips"] == skips
    np.testing.assert_array_equal(problem["p"], [-3.0, -3.9])


def test_a_large_finite_gradient_is_skipped_and_the_moments_stay_finite(run):
    # Case C33, by the guard: float32 gradients of 1e20 and then of 1.
    problem = run(skip_if(sgd(0.1, momentum=0.9), large_step(1e3)), dtype="float32", p=0.0)
    for gradient in (1e20, 1.0, 1.0):
        problem(gradient)
    np.testing.assert_allclose(problem["p"], -0.1 - 0.19, rtol=1e-6)
    assert (problem["sgd/velocity/p"], problem["skip_if/total_skips"]) == (np.float32(1.9), 1)


def test_the_bound_is_compared_without_overflow(run):
    for size, skipped in ((1e30, 0), (3e30, 1)):
        problem = run(skip_if(sgd(1.0), large_step(2e30)), dtype="float32", p=0.0)
        problem(size)
        assert problem["skip_if/total_skips"] == skipped


def test_a_symbolic_bound_is_checked_in_the_graph(new_parameter):
    p, g, bound = new_parameter(0.0), pt.dscalar("g"), pt.dscalar("bound")
    steps = skip_if(sgd(1.0), large_step(bound))([g], [p])
    program = ptml.function([g, bound], [], updates=steps, seed=0, **PYTHON)
    program(1.0, 2.0)
    program(1.0, 0.5)
    assert (program.state["p"], program.state["skip_if/total_skips"]) == (-1.0, 1)
    with pytest.raises(
        ValueError, match=r"LargeStep: max_norm must be a positive number.*the graph computes"
    ):
        program(1.0, -1.0)
    assert large_step(bound).reason == "took a step whose norm reached max_norm"


def test_a_condition_of_ones_own_sees_the_step_the_state_and_the_loss():
    X, fc, drop = Input("X", (None, 2)), Linear("fc", n_in=2, n_out=1), Dropout("drop", p=0.5)
    loss, _ = supervised_loss(fc(drop(X)), SquaredError())

    def decide(updates, parameters):
        assert isinstance(updates, Steps)
        assert parameters == [fc.W, fc.b]
        [velocity] = [new for handle, new in updates.state.items() if handle.slot.of is fc.W.slot]
        moved = pt.max(pt.abs(updates[fc.W] - fc.W - updates.amounts[fc.W])) > 1e-9
        return moved | pt.any(velocity > 1e6) | (updates.loss > 50)

    condition = SkipCondition(decide, "met a spike of the loss")
    guard = skip_if(sgd(0.1, momentum=0.9), condition, max_consecutive_skips=1)
    step = compile_train(loss, guard, seed=0, compile_kwargs=PYTHON)
    x, y = batch()
    step(x, y)
    assert step.state["skip_if/total_skips"] == 0
    before = step.state
    assert step(x, y + 100) > 50
    assert set(changed(before, step.state)) == {*COUNTS, "drop/key"}
    with pytest.raises(FloatingPointError, match=r"the last because the optimizer met a spike of the loss\."):
        step(x, y + 100)


def test_a_condition_may_read_state_that_is_steered(new_parameter):
    p, g, bound = new_parameter(0.0), pt.dscalar("g"), scalar_state("bound", 1.0)
    rule = skip_if(sgd(1.0), lambda updates, parameters: abs(updates.amounts[p]) > bound)
    program = ptml.function([g], [], updates=rule([g], [p]), seed=0, **PYTHON)
    program(2.0)
    assert program.state["p"] == 0.0
    program.store.set({"bound": 3.0})
    program(2.0)
    assert program.state["p"] == -2.0


def test_any_of_several_conditions_is_enough_and_the_one_that_was_met_is_named(new_parameter):
    p, g = new_parameter(0.0), pt.dscalar("g")
    odd = SkipCondition(lambda updates, parameters: pt.eq(updates.amounts[p], -3.0), "made a step of three")
    rule = skip_if(sgd(1.0), [nonfinite(), large_step(5.0), odd], max_consecutive_skips=1)
    program = ptml.function([g], [], updates=rule([g], [p]), seed=0, **PYTHON)
    for gradient, reason in (
        (np.nan, "would have written inf or NaN"),
        (6.0, "reached 5.0"),
        (3.0, "of three"),
    ):
        program(1.0)
        before = program.state
        program(gradient)
        assert changed(before, program.state) == COUNTS
        with pytest.raises(FloatingPointError, match=f"the optimizer [^.]*{reason}"):
            program(gradient)
    assert program.state["p"] == -3.0


def test_a_guard_around_a_guard_sees_what_the_inner_one_leaves(run):
    inner = skip_if(sgd(1.0), large_step(5.0), namespace="inner")
    problem = run(skip_if(inner, large_step(3.0), namespace="outer"), p=0.0)
    for gradient in (1.0, 4.0, 6.0, 4.0):
        problem(gradient)
    assert problem["p"] == -1.0
    # A step that the inner one has thrown away is of length zero, and none for the outer one to throw away.
    assert (problem["inner/total_skips"], problem["outer/total_skips"]) == (1, 2)
    # Of 6 and then 4 the outer one threw away the second: a skip of it is no step for the inner one either.
    assert (problem["inner/consecutive_skips"], problem["outer/consecutive_skips"]) == (0, 1)


def test_two_guards_of_one_namespace_are_refused_at_compile(new_parameter):
    p = new_parameter(0.0)
    rule = apply_if_finite(skip_if(sgd(1.0), large_step(5.0)))
    with pytest.raises(ValueError, match=r"'skip_if/consecutive_skips'.*namespace"):
        ptml.function([], [], updates=rule([p], [p]), seed=0, **PYTHON)


# When it is too much.


def test_the_sixth_skip_in_a_row_raises_by_default_and_none_never_does(run):
    problem, patient = run(apply_if_finite(sgd(0.1)), p=0.0), None
    for _ in range(5):
        problem(np.inf)
    with pytest.raises(
        FloatingPointError, match=r"\(max_consecutive_skips=5\).*before the first of them.*saved"
    ):
        problem(np.inf)
    assert problem["skip_if/total_skips"] == 5
    patient = run(apply_if_finite(sgd(0.1), max_consecutive_skips=None), p=0.0)
    for _ in range(20):
        patient(np.inf)
    assert patient["skip_if/consecutive_skips"] == 20


def test_the_limit_may_be_symbolic(new_parameter):
    p, g, limit = new_parameter(0.0), pt.dscalar("g"), pt.lscalar("limit")
    steps = apply_if_finite(sgd(1.0), max_consecutive_skips=limit)([g], [p])
    program = ptml.function([g, limit], [], updates=steps, seed=0, **PYTHON)
    program(np.nan, 1)
    program(np.nan, 2)
    with pytest.raises(FloatingPointError, match=r"max_consecutive_skips=limit"):
        program(np.nan, 2)
    with pytest.raises(
        ValueError, match=r"SkipIf: max_consecutive_skips must be a whole number of at least 1"
    ):
        program(1.0, 0)


def test_counts_may_be_given_and_are_of_their_own_dtype(run):
    streak, total = scalar_state("streak"), scalar_state("total", dtype="int32")
    problem = run(apply_if_finite(sgd(0.1), consecutive_skips=streak, total_skips=total), p=0.0)
    for gradient in (np.nan, np.nan, 1.0, np.nan):
        problem(gradient)
    assert (problem["streak"], problem["total"]) == (1.0, 3)
    assert (problem["streak"].dtype, problem["total"].dtype) == ("float64", "int32")
    assert not [a for a in problem.program.state if a.startswith("skip_if")]


# Where it stands, and what it is made of.


def test_a_guard_or_a_policy_in_a_chain_is_told_to_wrap_it():
    scale = scalar_state("scale", 1.0)
    for inner in (apply_if_finite(sgd(0.1)), reduce_on_plateau(sgd(scale), scale)):
        name = type(inner).__name__
        with pytest.raises(ValueError, match=rf"{name}\(.* in a chain: a .*wraps the whole.*{name}\(chain\("):
            chain(clip_by_global_norm(1.0), inner)
        with pytest.raises(ValueError, match="in a chain"):
            chain(inner)


def test_a_guard_inside_of_another_transform_is_refused_when_it_runs(new_parameter):
    class Twice(Transform):
        rule: object

        def apply(self, updates, parameters):
            return self.rule(updates, parameters)

    p = new_parameter(0.0)
    with pytest.raises(ValueError, match=r"SkipIf\(.*stands inside of Twice\(.*wraps the whole"):
        Twice(rule=apply_if_finite(sgd(0.1)))([p], [p])


def test_a_guard_around_gradients_is_told_to_put_a_rule_in(new_parameter):
    p = new_parameter(0.0)
    with pytest.raises(ValueError, match=r"ClipByGlobalNorm\(\) ends in gradients"):
        apply_if_finite(clip_by_global_norm(1.0))([p], [p])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: skip_if(adam), TypeError, r"rule is the class adam"),
        (lambda: skip_if(0.1), TypeError, r"SkipIf: rule must be a rule.*got 0\.1"),
        (lambda: skip_if(sgd(), nonfinite), TypeError, r"got <function nonfinite.*Write nonfinite\(\)"),
        (lambda: skip_if(sgd(), large_step), TypeError, r"such as nonfinite\(\) or large_step\(10\.0\)"),
        (lambda: skip_if(sgd(), 5.0), TypeError, r"condition is a condition such as.*got 5\.0"),
        (lambda: skip_if(sgd(), []), ValueError, r"an empty list"),
        (lambda: skip_if(sgd(), [nonfinite(), None]), TypeError, r"got None"),
        (lambda: skip_if(sgd(), max_consecutive_skips=0), ValueError, r"whole number of at least 1; got 0"),
        (lambda: skip_if(sgd(), max_consecutive_skips=2.5), ValueError, r"whole number of at least 1"),
        (lambda: skip_if(sgd(), nonfinite(), 3), TypeError, "positional"),
        (lambda: skip_if(sgd(), total_skips="total"), TypeError, r"total_skips is the handle of a scalar"),
        (lambda: skip_if(sgd(), namespace="a*"), ValueError, "namespace"),
        (lambda: SkipCondition(3), TypeError, r"got 3"),
        (lambda: SkipCondition(lambda u, p: True, 3), TypeError, r"reason is a phrase"),
        (lambda: large_step(0.0), ValueError, r"max_norm must be a positive number; got 0\.0"),
        (lambda: large_step(float("nan")), ValueError, r"max_norm"),
        (lambda: large_step("5"), TypeError, r"max_norm"),
    ],
)
def test_a_mistake_is_told_what_to_write(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_one_slot_for_both_counts_is_refused():
    count = scalar_state("skips")
    with pytest.raises(ValueError, match=r"one slot, 'skips'"):
        skip_if(sgd(), consecutive_skips=count, total_skips=count)


@pytest.mark.parametrize(
    "verdict", [lambda u, p: u.amounts[p[0]] > 1, lambda u, p: pt.sum(u.amounts[p[0]]), lambda u, p: 1.0]
)
def test_a_verdict_that_is_no_scalar_boolean_is_refused(new_parameter, verdict):
    p = new_parameter([0.0, 1.0])
    with pytest.raises(TypeError, match=r"one verdict on the whole step, a scalar of dtype bool"):
        skip_if(sgd(), verdict)([p], [p])


def test_guards_are_values():
    rule = skip_if(chain(trace(0.9), sgd(0.1)), [nonfinite(), large_step(10.0)], max_consecutive_skips=3)
    again = skip_if(chain(trace(0.9), sgd(0.1)), [nonfinite(), large_step(10.0)], max_consecutive_skips=3)
    assert rule == again
    assert hash(rule) == hash(again)
    assert pickle.loads(pickle.dumps(rule)) == copy.deepcopy(rule) == rule
    names = {name: getattr(ptml.optim, name) for name in ptml.optim.__all__}
    assert eval(repr(rule), names) == rule
    assert repr(apply_if_finite(adam(1e-3))) == "SkipIf(Adam())"
    assert apply_if_finite(adam()) == skip_if(adam(), nonfinite()) == skip_if(adam(), None)
    assert isinstance(rule, SkipIf)


def test_updates_of_a_guard_are_copied_and_pickled_with_their_verdict(new_parameter):
    p, g = new_parameter(0.0), pt.dscalar("g")
    pairs = list(apply_if_finite(adam(0.1))([g], [p]).items())
    g, *values = pickle.loads(pickle.dumps([g, *(new for _, new in pairs)]))
    updates = {handle: new for (handle, _), new in zip(pairs, values, strict=True)}
    program = ptml.function([g], [], updates=updates, seed=0, **PYTHON)
    before = program.state
    program(np.inf)
    assert changed(before, program.state) == COUNTS


def test_a_new_value_of_another_dtype_is_still_refused_under_a_guard(new_parameter):
    p, g = new_parameter(0.0, dtype="float32"), pt.dscalar("g")
    m = Slot("m", Role.OPTIMIZER, "float32", (), Zeros()).handle

    def rule(updates, parameters):
        return updates.to_steps(updates.amounts).with_state({m: g})

    with pytest.raises(TypeError, match=r"new value of 'm' is float64.*float32\[\] is declared"):
        ptml.function([g], [], updates=apply_if_finite(rule)([g], [p]), seed=0, **PYTHON)
