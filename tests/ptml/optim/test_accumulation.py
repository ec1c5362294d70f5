"""Accumulation: a window of micro-batches makes the one step that a batch of them all would."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.initializers import Zeros
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import CrossEntropy, SquaredError, supervised_loss
from ptml.optim import (
    Steps,
    Transform,
    accumulate,
    adam,
    adam_updates,
    add_weight_decay,
    apply_if_finite,
    chain,
    clip_by_global_norm,
    compile_train,
    cosine_schedule,
    counter,
    get_gradients,
    large_step,
    reduce_on_plateau,
    reuses_state,
    scalar_state,
    scale_by_schedule,
    sgd,
    skip_if,
    state_for,
    trace,
)
from ptml_state import State

PYTHON = {"mode": Mode(linker="py", optimizer="fast_compile")}
STATE = ["accumulate/weight", "accumulate/micro_batches", "accumulate/gradient/p"]


def train(loss, rule, **options):
    options = {"seed": 0} | options if "state" not in options else options
    return compile_train(loss, rule, compile_kwargs=PYTHON, **options)


def batch(n=12, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)), rng.normal(size=(n, 1))


def in_parts(data, *sizes):
    ends = np.cumsum(sizes)
    return [[array[e - n : e] for array in data] for n, e in zip(sizes, ends, strict=True)]


@pytest.mark.backends("numba", "c", "jax", "mlx")
def test_micro_batches_of_unequal_size_weigh_as_one_batch_would(backend, float32):
    # Case C42: the gradient at 0 of the mean of (w x - x)**2 over 1..5 is -22; the mean of means is -26.67.
    X = Input("X", (None, 1))
    fc = Linear("fc", n_in=1, n_out=1, bias=False, weight_initializer=Zeros())
    loss, _ = supervised_loss(fc(X), SquaredError())
    step = compile_train(loss, chain(accumulate(3), sgd(0.5, momentum=0.9)), seed=0, backend=backend)
    x = np.arange(1, 6, dtype="float32")[:, None]
    for part in (x[:2], x[2:4]):
        step(part, part)
        assert step.state["fc/W"] == 0.0
    np.testing.assert_allclose(step.state["accumulate/gradient/fc/W"], -2 * (1 + 4 + 9 + 16) / 4, rtol=1e-6)
    assert (step.state["accumulate/weight"], step.state["accumulate/micro_batches"]) == (4, 2)
    step(x[4:], x[4:])
    np.testing.assert_allclose(step.state["fc/W"], 0.5 * 22, rtol=1e-6)
    np.testing.assert_allclose(step.state["sgd/velocity/fc/W"], -22, rtol=1e-6)
    assert not any(step.state[a].any() for a in step.state if a.startswith("accumulate"))


@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (1, 5, 4, 2), (12,)], ids=str)
def test_a_window_makes_the_step_of_the_full_batch(sizes):
    X = Input("X", (None, 2))
    net = Sequential(Linear("fc", n_in=2, n_out=3), Linear("out", n_in=3, n_out=1))
    loss, _ = supervised_loss(net(X), SquaredError())
    behind = (
        clip_by_global_norm(0.5),
        add_weight_decay(0.1),
        adam(cosine_schedule(0.1, 10)),
        trace(0.5),
    )
    whole = train(loss, chain(*behind))
    parts = train(loss, chain(accumulate(len(sizes)), *behind))
    for seed in range(3):
        data = batch(seed=seed)
        whole(*data)
        for part in in_parts(data, *sizes):
            parts(*part)
        for address in whole.state:
            np.testing.assert_allclose(
                parts.state[address], whole.state[address], rtol=1e-12, atol=1e-14, err_msg=address
            )
    assert parts.state["adam/step_count"] == 3


def test_one_micro_batch_a_window_is_bit_for_bit_the_rule_itself(run):
    gathered, alone = (
        run(rule, p=[1.0, 2.0]) for rule in (chain(accumulate(1, weight=1), adam(0.1)), adam(0.1))
    )
    for gradient in ([0.1, 3e-9], [-1e5, 0.3]):
        gathered(gradient)
        alone(gradient)
        for address in ("p", "adam/first_moment/p", "adam/second_moment/p", "adam/step_count"):
            np.testing.assert_array_equal(gathered[address], alone[address])


def test_what_is_behind_waits_and_what_is_ahead_moves_at_each_call(run):
    mine = counter("mine")
    rule = chain(
        scale_by_schedule(lambda count: 1.0 + count, namespace="ahead"),
        trace(0.5, namespace="ahead"),
        accumulate(3, weight=1),
        scale_by_schedule(lambda count: 1.0 + 0 * (count + mine), namespace="behind"),
        trace(0.5, namespace="behind"),
        sgd(0.1),
    )
    problem = run(rule, p=0.0)
    velocities = []
    for call in range(1, 7):
        problem(1.0)
        velocities.append(float(problem["ahead/velocity/p"]))
        full = call // 3
        assert (problem["ahead/step_count"], problem["behind/step_count"]) == (call, full)
        assert problem["mine"] == call
        assert (problem["behind/velocity/p"] != 0) == (full > 0)
    np.testing.assert_allclose(velocities, [1, 2.5, 4.25, 6.125, 8.0625, 10.03125])
    first, second = np.mean(velocities[:3]), np.mean(velocities[3:])
    np.testing.assert_allclose(problem["p"], -0.1 * (first + (0.5 * first + second)), rtol=1e-12)


def test_statistics_and_keys_of_the_model_move_with_each_micro_batch():
    X = Input("X", (None, 2))
    net = Sequential(BatchNorm("bn", n_in=2), Dropout("drop", p=0.5), Linear("fc", n_in=2, n_out=1))
    loss, _ = supervised_loss(net(X), SquaredError())
    step = train(loss, chain(accumulate(3), adam(0.1)))
    for k in range(1, 4):
        before = step.state
        step(*batch(seed=k))
        assert step.state["drop/key"][2] == k
        assert not np.array_equal(before["bn/running_mean"], step.state["bn/running_mean"])
        assert np.array_equal(before["fc/W"], step.state["fc/W"]) == (k < 3)


def test_a_window_that_is_not_full_is_saved_and_gone_on_with():
    X = Input("X", (None, 2))
    loss, _ = supervised_loss(Linear("fc", n_in=2, n_out=1)(X), SquaredError())
    rule = chain(accumulate(4), adam(0.1))
    step = train(loss, rule)
    parts = in_parts(batch(), 1, 2, 3, 1, 2, 3)
    for part in parts[:2]:
        step(*part)
    resumed = train(loss, rule, state=State.of(step.state.leaves))
    assert resumed.state["accumulate/micro_batches"] == 2
    assert resumed.state["accumulate/weight"] == 3
    for part in parts[2:]:
        step(*part)
        resumed(*part)
    assert step.state == resumed.state
    assert step.state["adam/step_count"] == 1


def test_two_programs_over_one_store_fill_one_window(new_parameter):
    p, g, rule = new_parameter(0.0), pt.dscalar("g"), chain(accumulate(2, weight=1), sgd(1.0))
    one = ptml.function([g], [], updates=rule([g], [p]), seed=0, **PYTHON)
    two = ptml.function([g], [], updates=rule([2 * g], [p]), state=one, **PYTHON)
    one(1.0)
    two(1.0)
    assert one.state["p"] == -1.5


@pytest.mark.parametrize("how", ["input", "leaf"])
def test_a_symbolic_count_may_end_a_window_early(new_parameter, how):
    p, g, last = new_parameter(0.0), pt.dscalar("g"), pt.bscalar("last")
    n = scalar_state("window", 4, dtype="int64") if how == "leaf" else pt.switch(last, 1, 4)
    steps = chain(accumulate(n, weight=1), sgd(1.0))([g], [p])
    program = ptml.function([g] if how == "leaf" else [g, last], [], updates=steps, seed=0, **PYTHON)

    def call(gradient, is_last):
        if how == "leaf":
            program.store.set({"window": 1 if is_last else 4})
            program(gradient)
        else:
            program(gradient, is_last)

    for gradient in (1.0, 2.0, 3.0, 4.0, 10.0):
        call(gradient, 0)
    assert program.state["p"] == -2.5
    call(20.0, 1)
    assert program.state["p"] == -2.5 - 15
    assert program.state["accumulate/micro_batches"] == 0


def test_a_symbolic_count_is_checked_in_the_graph(new_parameter):
    p, g, n = new_parameter(0.0), pt.dscalar("g"), pt.lscalar("n")
    steps = chain(accumulate(n, weight=1), sgd(1.0))([g], [p])
    program = ptml.function([g, n], [], updates=steps, seed=0, **PYTHON)
    with pytest.raises(ValueError, match=r"Accumulate: n must be a whole number of at least 1"):
        program(1.0, 0)


# What a micro-batch weighs.


def test_ignored_labels_do_not_weigh_and_a_window_of_them_alone_has_no_gradient():
    X = Input("X", (None, 2))
    fc = Linear("fc", n_in=2, n_out=3)
    loss, _ = supervised_loss(fc(X), CrossEntropy(expect_logits=True, ignore_label=-1))
    whole, parts = train(loss, sgd(1.0)), train(loss, chain(accumulate(3), sgd(1.0)))
    x, _ = batch(6)
    labels = np.array([0, -1, -1, -1, 2, 1])
    whole(x, labels)
    for part in (slice(0, 2), slice(2, 4), slice(4, 6)):
        parts(x[part], labels[part])
    np.testing.assert_allclose(parts.state["fc/W"], whole.state["fc/W"], rtol=1e-12)
    before = parts.state
    for _ in range(3):
        parts(x, np.full(6, -1))
    assert parts.state == before


def test_a_penalty_beside_the_mean_counts_once():
    X = Input("X", (None, 2))
    fc = Linear("fc", n_in=2, n_out=1)
    loss, _ = supervised_loss(fc(X), SquaredError())
    penalized = 0.5 * loss + 0.1 * (fc.W**2).sum() - 1.0
    whole, parts = train(penalized, sgd(1.0)), train(penalized, chain(accumulate(2), sgd(1.0)))
    data = batch(5)
    whole(*data)
    for part in in_parts(data, 1, 4):
        parts(*part)
    np.testing.assert_allclose(parts.state["fc/W"], whole.state["fc/W"], rtol=1e-12)


def test_a_weight_that_is_given_is_taken():
    X = Input("X", (None, 2))
    fc = Linear("fc", n_in=2, n_out=1)
    own = ((fc(X) - 1) ** 2).mean()
    whole, parts = train(own, sgd(1.0)), train(own, chain(accumulate(2, weight=X.shape[0]), sgd(1.0)))
    x, _ = batch(5)
    whole(x)
    for part in (x[:1], x[1:]):
        parts(part)
    np.testing.assert_allclose(parts.state["fc/W"], whole.state["fc/W"], rtol=1e-12)


def test_a_negative_weight_is_refused_where_it_is_computed(new_parameter):
    p, g, w = new_parameter(0.0), pt.dscalar("g"), pt.dscalar("w")
    program = ptml.function(
        [g, w], [], updates=chain(accumulate(2, weight=w), sgd(1.0))([g], [p]), seed=0, **PYTHON
    )
    with pytest.raises(ValueError, match=r"Accumulate: weight must be 0 or more"):
        program(1.0, -1.0)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda fc, X, loss: ((fc(X) - 1) ** 2).mean(), "not the mean of a loss of ptml.loss"),
        (lambda fc, X, loss: loss**2, "not the mean of a loss of ptml.loss"),
        (lambda fc, X, loss: loss * X.sum(), "not the mean of a loss of ptml.loss"),
        (lambda fc, X, loss: loss + X.mean(), "not the mean of a loss of ptml.loss"),
        (lambda fc, X, loss: (fc.W**2).sum(), "not the mean of a loss of ptml.loss"),
        (lambda fc, X, loss: loss + supervised_loss(fc(X), SquaredError())[0], "joins several means"),
        (lambda fc, X, loss: supervised_loss(fc(X), SquaredError(reduction="sum"))[0], r"reduction='mean'"),
    ],
)
def test_a_weight_that_cannot_be_known_is_asked_for(make, why):
    X, fc = Input("X", (None, 2)), Linear("fc", n_in=2, n_out=1, bias=False)
    loss, _ = supervised_loss(fc(X), SquaredError())
    with pytest.raises(
        ValueError, match=rf"cannot know how much.*{why}.*accumulate\(4, weight=X\.shape\[0\]\)"
    ):
        chain(accumulate(4), sgd(0.1))(make(fc, X, loss), [fc.W])


def test_gradients_that_are_given_say_nothing_of_their_weight(new_parameter):
    p = new_parameter(0.0)
    with pytest.raises(
        ValueError, match=r"given gradients, and not the loss.*weight=1 if all are of one size"
    ):
        chain(accumulate(4), sgd(0.1))([p], [p])


# Together with the others.


def test_a_guard_throws_a_micro_batch_away_and_the_next_takes_its_place(run):
    problem = run(apply_if_finite(chain(accumulate(2, weight=1), adam(0.1))), p=0.0)
    other = run(chain(accumulate(2, weight=1), adam(0.1)), p=0.0)
    for gradient in (1.0, np.nan, 3.0, np.inf, 2.0, 5.0):
        before = {a: problem[a] for a in (*STATE, "p", "adam/first_moment/p", "adam/step_count")}
        problem(gradient)
        if np.isfinite(gradient):
            other(gradient)
        else:
            assert all(np.array_equal(problem[a], old) for a, old in before.items())
    assert problem["adam/step_count"] == 2
    assert problem["skip_if/total_skips"] == 2
    for address in (*STATE, "p", "adam/first_moment/p"):
        np.testing.assert_array_equal(problem[address], other[address])


def test_a_guard_sees_no_step_while_a_window_fills(run):
    problem = run(skip_if(chain(accumulate(2, weight=1), sgd(1.0)), large_step(5.0)), p=0.0)
    for gradient in (100.0, -98.0, 8.0, 4.0):
        problem(gradient)
    # The mean of the first two is 1, and of the others 6: the micro-batch that completes it is thrown away.
    assert problem["p"] == -1.0
    assert (problem["skip_if/total_skips"], problem["accumulate/micro_batches"]) == (1, 1)


def test_a_policy_around_counts_micro_batches():
    X = Input("X", (None, 2))
    loss, _ = supervised_loss(Linear("fc", n_in=2, n_out=1)(X), SquaredError())
    scale = scalar_state("scale", 1.0)
    rule = reduce_on_plateau(
        chain(accumulate(2), sgd(0.0 * scale)), scale, patience=1, accumulation_size=2, factor=0.5
    )
    step = train(loss, rule)
    scales = []
    for _ in range(6):
        step(*batch())
        scales.append(float(step.state["scale"]))
    assert scales == [1, 1, 1, 0.5, 0.5, 0.25]


@pytest.mark.parametrize("kind", ["function", "reuses_state", "updates"])
def test_a_function_behind_it_waits_too(run, kind):
    def momentum(updates, parameters):
        steps, new = {}, {}
        for parameter, gradient in zip(parameters, get_gradients(updates, parameters), strict=True):
            velocity = state_for(parameter, "mine/velocity")
            new[velocity] = 0.5 * velocity + gradient
            steps[parameter] = -new[velocity]
        return Steps(steps, new)

    rules = {
        "function": momentum,
        "reuses_state": reuses_state(momentum),
        "updates": lambda updates, parameters: adam_updates(updates, parameters, 0.1, namespace="mine"),
    }
    problem = run(chain(accumulate(2, weight=1), rules[kind]), p=0.0)
    kept = "mine/first_moment/p" if kind == "updates" else "mine/velocity/p"
    for call, gradient in enumerate((1.0, 3.0, 2.0), 1):
        problem(gradient)
        assert (problem["p"] != 0) == (problem[kept] != 0) == (call >= 2)
    if kind == "updates":
        assert problem["mine/step_count"] == 1
    else:
        assert problem["p"] == -2.0


def test_a_transform_outside_of_any_chain_waits_too(new_parameter):
    p, g = new_parameter(0.0), pt.dscalar("g")
    steps = adam(0.1)(accumulate(2, weight=1)([g], [p]), [p])
    program = ptml.function([g], [], updates=dict(steps), seed=0, **PYTHON)
    for _ in range(3):
        program(1.0)
    assert program.state["adam/step_count"] == 1
    np.testing.assert_allclose(program.state["p"], -0.1, rtol=1e-6)


def test_a_window_of_windows(run):
    rule = chain(accumulate(2, weight=1), accumulate(2, weight=1, namespace="outer"), sgd(1.0))
    problem = run(rule, p=0.0)
    for gradient in (1.0, 3.0, 5.0):
        problem(gradient)
    assert (problem["p"], problem["outer/micro_batches"], problem["outer/gradient/p"]) == (0.0, 1, 2.0)
    problem(7.0)
    assert problem["p"] == -4.0


def test_the_loss_of_a_call_is_not_that_of_the_window():
    X, fc = Input("X", (None, 2)), Linear("fc", n_in=2, n_out=1)
    loss, _ = supervised_loss(fc(X), SquaredError())
    assert clip_by_global_norm(1.0)(loss, [fc.W]).loss is loss
    assert accumulate(4)(loss, [fc.W]).loss is None


def test_half_precision_gathers_without_overflow(run):
    problem = run(chain(accumulate(3, weight=pt.constant(30_000)), sgd(1e-4)), dtype="float16", p=1.0)
    for _ in range(3):
        problem(3e4)
    assert problem["p"].dtype == np.float16
    np.testing.assert_allclose(problem["p"], -2.0, rtol=1e-3)


# Mistakes.


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: accumulate(0), ValueError, r"n must be a whole number of at least 1; got 0"),
        (lambda: accumulate(2.5), ValueError, r"n must be a whole number"),
        (lambda: accumulate(sgd(0.1)), TypeError, r"n must be a whole number"),
        (lambda: accumulate(2, weight=-1.0), ValueError, r"weight must be"),
        (lambda: accumulate(2, weight=pt.dvector("w")), TypeError, r"weight must be"),
        (lambda: accumulate(2, 3), TypeError, r"positional"),
    ],
)
def test_a_mistake_is_told_what_to_write(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_behind_a_rule_or_inside_of_another_transform_it_is_refused(new_parameter):
    class Half(Transform):
        rule: object

        def apply(self, updates, parameters):
            return self.rule(updates, parameters)

    p = new_parameter(0.0)
    with pytest.raises(
        ValueError, match=r"Accumulate\(2, weight=1\) stands behind a rule.*chain\(accumulate\(2\)"
    ):
        chain(sgd(0.1), accumulate(2, weight=1))([p], [p])
    with pytest.raises(ValueError, match=r"stands inside of Half\(.*chain\(accumulate\(2\), half\(\.\.\.\)"):
        Half(rule=chain(accumulate(2, weight=1), sgd(0.1)))([p], [p])


def test_it_is_a_value():
    assert accumulate(4) == accumulate(4) != accumulate(4, namespace="other")
    assert repr(chain(accumulate(4, weight=1), adam())) == "Chain(Accumulate(4, weight=1), Adam())"


def test_a_window_keeps_float32(float32):
    X = Input("X", (None, 2))
    loss, _ = supervised_loss(Linear("fc", n_in=2, n_out=1)(X), SquaredError())
    updates = chain(accumulate(3), sgd(0.1))(loss, ptml.slots(loss))
    assert {new.dtype for handle, new in updates.items() if handle.dtype != "int64"} == {"float32"}
    assert pytensor.config.floatX == "float32"
