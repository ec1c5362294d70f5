"""The plateau policy: exact sequences of cuts, windows, cooldowns, and what it refuses."""

from __future__ import annotations

import pickle

import numpy as np
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.layers import BatchNorm, Input, Linear, Sequential
from ptml.loss import SquaredError, supervised_loss
from ptml.optim import (
    Steps,
    Transform,
    adam,
    apply_if_finite,
    chain,
    clip_by_global_norm,
    compile_train,
    counter,
    get_gradients,
    large_step,
    nonfinite,
    reduce_on_plateau,
    scalar_state,
    sgd,
    skip_if,
    take_step,
)
from ptml_state import Role, State

PYTHON = {"mode": Mode(linker="py", optimizer="fast_compile")}
NAN, INF = float("nan"), float("inf")


class Watch:
    """A policy that is fed losses, and tells the scale after each."""

    def __init__(self, new_parameter, *, start=1.0, dtype="float64", wrap=None, compiled=None, **options):
        self.scale, self.p = scalar_state("scale", start, dtype=dtype), new_parameter(0.0, dtype=dtype)
        self.loss = pt.scalar("loss", dtype=dtype)
        policy = reduce_on_plateau(sgd(self.scale), self.scale, **options)
        rule = policy if wrap is None else wrap(policy)
        self.updates = take_step(rule, self.loss + self.p - self.p, [self.p])
        self.program = ptml.function([self.loss], [], updates=self.updates, seed=0, **(compiled or PYTHON))
        self.dtype = dtype

    def __call__(self, *losses):
        scales = []
        for loss in losses:
            self.program(np.asarray(loss, self.dtype))
            scales.append(float(self.program.state["scale"]))
        return scales

    def __getitem__(self, name):
        return self.program.state[f"plateau/{name}"]


@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_cuts_come_at_the_same_calls_on_every_backend(new_parameter, backend):
    # Case C43: what stands still is cut, be it above or below zero; NaN never improves.
    watch = Watch(
        new_parameter, dtype="float32", compiled={"backend": backend}, patience=2, factor=0.1, rtol=1e-4
    )
    start = State.of(watch.program.state.leaves)
    stairs = [1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    sequences = [
        ([1.0] * 8, stairs),
        ([-1.0] * 8, stairs),
        ([1, NAN, NAN, NAN, NAN], [1, 1, 0.1, 0.1, 0.01]),
        ([NAN, 1, 1, 1, 1], [1, 1, 1, 0.1, 0.1]),
        ([-INF, -1, -1, -1], [1, 1, 1, 0.1]),
        ([INF, INF, INF, 3, 2, 1], [1, 0.1, 0.1, 0.1, 0.1, 0.1]),
        ([-1, -1.00005, -1.00009, -1.0003], [1, 1, 0.1, 0.1]),
        ([1, 0.99995, 0.99991, 0.9997], [1, 1, 0.1, 0.1]),
    ]
    for losses, scales in sequences:
        watch.program.store.load(start)
        np.testing.assert_allclose(watch(*losses), scales, rtol=1e-5, err_msg=str(losses))
        if np.isfinite(losses).any():
            assert np.isfinite(watch["best_loss"])


def test_a_window_multiplies_the_wait(new_parameter):
    # Patience 2 and windows of 4: the first is the best, two do not improve, and the cut comes at call 12.
    watch = Watch(new_parameter, patience=2, accumulation_size=4)
    assert watch(*[1.0] * 13) == [1.0] * 11 + [0.1, 0.1]
    assert (watch["observed"], watch["wait"], watch["best_loss"]) == (1, 0, 1.0)


def test_a_window_is_judged_by_its_mean(new_parameter):
    watch = Watch(new_parameter, patience=1, accumulation_size=2)
    assert watch(4.0, 0.0) == [1.0, 1.0]
    assert watch["best_loss"] == 2.0
    # 0.5 is less than the best, and the mean of its window is not.
    np.testing.assert_allclose(watch(0.5, 3.5), [1.0, 0.1])
    assert watch(1.0, 2.0)[-1] == watch(0.0, 2.0)[-1]
    assert watch["best_loss"] == 1.0
    watch(NAN)
    assert np.isnan(watch["mean_loss"])
    watch(0.0)
    assert (watch["mean_loss"], watch["best_loss"]) == (0.0, 1.0)


def test_counts_may_be_written_in_terms_of_the_batch():
    # The worked example of windows as long as an epoch.
    X = Input("X", (None, 2))
    loss, _ = supervised_loss(Linear("fc", n_in=2, n_out=1)(X), SquaredError())
    steps_per_epoch = 16 // X.shape[0]
    rate = scalar_state("rate", 0.0)
    rule = reduce_on_plateau(
        adam(rate), rate, patience=2, accumulation_size=steps_per_epoch, cooldown=0 * steps_per_epoch
    )
    step = compile_train(loss, rule, seed=0, compile_kwargs=PYTHON)
    step.store.set({"rate": 1e-30})
    x = np.ones((4, 2))
    rates = []
    for _ in range(12):
        step(x, np.ones((4, 1)))
        rates.append(float(step.state["rate"]))
    np.testing.assert_allclose(rates, [1e-30] * 11 + [1e-31])


def test_a_cooldown_lets_windows_pass_before_any_counts(new_parameter):
    watch = Watch(new_parameter, patience=1, cooldown=2, factor=0.5)
    assert watch(*[1.0] * 8) == [1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125]
    # What improves meanwhile is remembered.
    watch = Watch(new_parameter, patience=1, cooldown=2, factor=0.5)
    assert watch(1.0, 1.0, 0.5, 0.7, 0.7) == [1, 0.5, 0.5, 0.5, 0.25]
    assert watch["best_loss"] == 0.5


def test_a_floor_ends_the_cuts_and_raises_nothing(new_parameter):
    watch = Watch(new_parameter, patience=1, factor=0.1, min_scale=0.05)
    np.testing.assert_allclose(watch(*[1.0] * 4), [1, 0.1, 0.05, 0.05])
    watch.program.store.set({"scale": 0.01})
    assert watch(1.0) == [0.01]
    watch.program.store.set({"scale": 2.0})
    np.testing.assert_allclose(watch(1.0), [0.2])


@pytest.mark.parametrize(
    ("rtol", "atol", "losses", "scales"),
    [
        (0.0, 0.0, [1.0, 1 - 1e-12, 1 - 1e-12], [1, 1, 0.1]),
        (0.1, 0.0, [1.0, 0.91, 0.89], [1, 0.1, 0.1]),
        (0.0, 0.1, [1.0, 0.91, 0.89], [1, 0.1, 0.1]),
        (0.0, 0.1, [-1.0, -1.09, -1.11], [1, 0.1, 0.1]),
        (0.1, 0.0, [-1.0, -1.11, -1.2], [1, 1, 0.1]),
        (1.0, 0.0, [1.0, 0.0, -1e-9, -2e-9], [1, 0.1, 0.1, 0.01]),
        (0.0, 0.0, [0.0, 0.0, -1e-300], [1, 0.1, 0.1]),
    ],
)
def test_an_improvement_is_relative_to_the_size_of_the_best(new_parameter, rtol, atol, losses, scales):
    watch = Watch(new_parameter, patience=1, rtol=rtol, atol=atol)
    got = watch(*losses)
    np.testing.assert_allclose(got, scales)


def test_the_cut_holds_from_the_next_call_on(new_parameter):
    p, scale = new_parameter(0.0), scalar_state("scale", 1.0)
    rule = reduce_on_plateau(sgd(scale), scale, patience=1)
    step = compile_train(p - p + 1.0 + 1.0 * p - p, rule, parameters=[p], seed=0, compile_kwargs=PYTHON)
    assert step.state["p"] == 0.0
    step = compile_train(p * 1.0, rule, parameters=[p], seed=0, compile_kwargs=PYTHON)
    moves = []
    for _ in range(4):
        before = step.state["p"]
        step()
        step.store.set({"plateau/best_loss": -1e9})
        moves.append(float(before - step.state["p"]))
    # The second call is the first without improvement: it is cut, and the third moves by a tenth.
    np.testing.assert_allclose(moves, [1, 1, 0.1, 0.01], rtol=1e-12)


def test_it_composes_with_a_schedule_and_a_chain(new_parameter):
    p, scale = new_parameter(0.0), scalar_state("scale", 1.0)
    rule = reduce_on_plateau(
        chain(clip_by_global_norm(10.0), sgd(lambda count: scale * (count + 1))), scale, patience=1
    )
    step = compile_train(p - p + p * 1.0, rule, parameters=[p], seed=0, compile_kwargs=PYTHON)
    for _ in range(2):
        step()
    assert step.state["p"] == -3.0


def test_two_policies_cut_two_scales(new_parameter):
    p = new_parameter(0.0)
    fast, slow = scalar_state("fast", 1.0), scalar_state("slow", 1.0)
    inner = reduce_on_plateau(sgd(fast * slow), fast, patience=1, namespace="one")
    rule = reduce_on_plateau(inner, slow, patience=2, namespace="two")
    loss = pt.dscalar("loss")
    program = ptml.function([loss], [], updates=rule(loss + 0 * p, [p]), seed=0, **PYTHON)
    for _ in range(3):
        program(1.0)
    np.testing.assert_allclose([program.state["fast"], program.state["slow"]], [0.01, 0.1])


# With guards.


@pytest.mark.parametrize("outside", [True, False], ids=["guard outside", "policy outside"])
def test_a_step_that_is_thrown_away_is_none_for_the_policy(new_parameter, outside):
    p, scale, loss = new_parameter(1.0), scalar_state("scale", 1.0), pt.dscalar("loss")
    options = {"patience": 2, "factor": 0.5}
    if outside:
        rule = apply_if_finite(reduce_on_plateau(sgd(1e-30 * scale), scale, **options))
    else:
        rule = reduce_on_plateau(apply_if_finite(sgd(1e-30 * scale)), scale, **options)
    program = ptml.function([loss], [], updates=rule(loss * p, [p]), seed=0, **PYTHON)
    waits = []
    for value in (1.0, 1.0, NAN, NAN, 1.0):
        program(value)
        waits.append((int(program.state["plateau/wait"]), float(program.state["scale"])))
    assert waits == [(0, 1.0), (1, 1.0), (1, 1.0), (1, 1.0), (0, 0.5)]
    assert program.state["skip_if/total_skips"] == 2


def test_the_best_of_nothing_yet_is_no_reason_to_throw_a_step_away(new_parameter):
    watch = Watch(new_parameter, accumulation_size=3, wrap=apply_if_finite)
    watch(1.0, 1.0)
    assert watch["best_loss"] == INF
    assert watch.program.state["skip_if/total_skips"] == 0
    watch(1.0)
    assert watch["best_loss"] == 1.0


def test_a_mean_loss_that_would_be_infinite_is_one(new_parameter):
    watch = Watch(new_parameter, accumulation_size=3, wrap=apply_if_finite)
    watch(INF)
    assert watch.program.state["skip_if/total_skips"] == 1
    assert watch["observed"] == 0


def test_it_is_saved_and_gone_on_with_in_the_middle_of_a_window():
    X = Input("X", (None, 2))
    net = Sequential(BatchNorm("bn", n_in=2), Linear("fc", n_in=2, n_out=1))
    loss, _ = supervised_loss(net(X), SquaredError())
    scale = scalar_state("scale", 1.0)
    rule = reduce_on_plateau(
        skip_if(adam(1e-9 * scale), [nonfinite(), large_step(1.0)]), scale, patience=1, accumulation_size=2
    )
    step = compile_train(loss, rule, seed=0, compile_kwargs=PYTHON)
    data = [np.random.default_rng(k).normal(size=(4, 2)) for k in range(9)]
    data[4][0] = NAN
    for k in range(5):
        step(data[k], np.ones((4, 1)))
    resumed = compile_train(loss, rule, state=State.of(step.state.leaves), compile_kwargs=PYTHON)
    for k in range(5, 9):
        assert step(data[k], np.ones((4, 1))) == resumed(data[k], np.ones((4, 1)))
    assert step.state == resumed.state
    assert step.state["scale"] < 1


# What it refuses.


def test_gradients_say_nothing_of_the_loss(new_parameter):
    p, scale = new_parameter(0.0), scalar_state("scale", 1.0)
    with pytest.raises(ValueError, match=r"decides from the loss, and it was given gradients"):
        reduce_on_plateau(sgd(scale), scale)([p], [p])


def test_a_rule_that_does_not_read_the_scale_is_refused(new_parameter):
    p, scale = new_parameter(0.0), scalar_state("scale", 1.0)
    with pytest.raises(
        ValueError, match=r"cuts 'scale', and nothing that Adam\(\) writes depends on it.*1e-3 \* scale"
    ):
        reduce_on_plateau(adam(), scale)(p * 1.0, [p])


def test_two_writers_of_a_scale_are_refused(new_parameter):
    p, scale = new_parameter(0.0), scalar_state("scale", 1.0)
    inner = reduce_on_plateau(sgd(scale), scale, namespace="inner")
    with pytest.raises(ValueError, match=r"writes 'scale', and so does ReduceOnPlateau\("):
        reduce_on_plateau(inner, scale)(p * 1.0, [p])


def test_no_rule_inside_is_refused(new_parameter):
    p, scale = new_parameter(0.0), scalar_state("scale", 1.0)
    with pytest.raises(ValueError, match=r"ClipByGlobalNorm\(\) ends in gradients"):
        reduce_on_plateau(clip_by_global_norm(1.0), scale)(p * 1.0, [p])


def test_inside_of_another_transform_it_is_refused(new_parameter):
    class Half(Transform):
        rule: object

        def apply(self, updates, parameters):
            return self.rule(updates, parameters)

    p, scale = new_parameter(0.0), scalar_state("scale", 1.0)
    with pytest.raises(ValueError, match=r"ReduceOnPlateau\(.*stands inside of Half\(.*a policy decides"):
        Half(rule=reduce_on_plateau(sgd(scale), scale))(p * 1.0, [p])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"factor": 1.0}, ValueError, r"factor must be a number between 0 and 1; got 1\.0"),
        ({"factor": 0.0}, ValueError, r"factor"),
        ({"patience": 0}, ValueError, r"patience must be a whole number of at least 1"),
        ({"patience": 1.5}, ValueError, r"patience"),
        ({"cooldown": -1}, ValueError, r"cooldown must be a whole number of at least 0"),
        ({"accumulation_size": 0}, ValueError, r"accumulation_size must be a whole number of at least 1"),
        ({"rtol": 1.5}, ValueError, r"rtol must be a number in \[0, 1\]"),
        ({"atol": -1.0}, ValueError, r"atol must be a finite number of 0 or more"),
        ({"min_scale": NAN}, ValueError, r"min_scale"),
        ({"namespace": ""}, ValueError, r"namespace"),
        ({"patience": pt.dscalar()}, TypeError, r"patience must be a whole number.*symbolic"),
    ],
)
def test_a_mistake_is_told_what_to_write(options, error, message):
    scale = scalar_state("scale", 1.0)
    with pytest.raises(error, match=message):
        reduce_on_plateau(sgd(scale), scale, **options)


@pytest.mark.parametrize(
    "scale", [1e-3, pt.dscalar("scale"), counter("scale"), Linear("fc", n_in=1, n_out=1).b, "scale"]
)
def test_a_scale_that_is_no_scalar_state_is_refused(scale):
    with pytest.raises(TypeError, match=r"scale is a scalar of state that you have made"):
        reduce_on_plateau(sgd(0.1), scale)


@pytest.mark.parametrize("argument", ["patience", "cooldown", "accumulation_size"])
def test_symbolic_counts_are_checked_in_the_graph(new_parameter, argument):
    p, scale = new_parameter(0.0), scalar_state("scale", 1.0)
    loss, count = pt.dscalar("loss"), pt.lscalar("count")
    rule = reduce_on_plateau(sgd(scale), scale, **{argument: count})
    for mode in ({"backend": "numba"}, PYTHON):
        program = ptml.function([loss, count], [], updates=rule(loss + 0 * p, [p]), seed=0, **mode)
        program(1.0, 1)
        with pytest.raises(
            ValueError, match=rf"ReduceOnPlateau: {argument} must be a whole number of at least"
        ):
            program(1.0, -1)


def test_it_is_a_value():
    scale = scalar_state("scale", 1.0)
    rule = reduce_on_plateau(sgd(scale), scale, patience=3)
    assert rule == reduce_on_plateau(sgd(scale), scale, patience=3)
    assert rule != reduce_on_plateau(sgd(scale), scale)
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert "patience=3" in repr(rule)


def test_a_function_may_be_steered(new_parameter):
    p, scale = new_parameter(0.0), scalar_state("scale", 1.0)

    def descend(updates, parameters):
        gradients = get_gradients(updates, parameters)
        return Steps({q: -scale * g for q, g in zip(parameters, gradients, strict=True)})

    step = compile_train(
        p * 1.0, reduce_on_plateau(descend, scale), parameters=[p], seed=0, compile_kwargs=PYTHON
    )
    step()
    assert step.state["p"] == -1.0
    assert [leaf.address for leaf in step.state.leaves if leaf.role is Role.OPTIMIZER] == [
        "scale",
        "plateau/best_loss",
        "plateau/wait",
        "plateau/cooldown",
        "plateau/observed",
        "plateau/mean_loss",
    ]
