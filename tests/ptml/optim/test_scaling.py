"""Scale, schedules as transforms, weight decay and traces, ahead of a rule and behind one."""

from __future__ import annotations

import math

import numpy as np
import pytensor.tensor as pt
import pytest

from ptml.optim import (
    Scale,
    add_weight_decay,
    chain,
    cosine_schedule,
    scalar_state,
    scale,
    scale_by_schedule,
    sgd,
    trace,
)
from ptml_state import where


def test_a_factor_multiplies_what_is_there(run):
    np.testing.assert_allclose(run(chain(scale(3.0), sgd(0.1)), p=0.0).follow([1.0]), [-0.3])
    np.testing.assert_allclose(run(chain(sgd(0.1), scale(3.0)), p=0.0).follow([1.0]), [-0.3])


def test_a_negative_factor_climbs(run):
    np.testing.assert_allclose(run(chain(scale(-1.0), sgd(0.1)), p=0.0).follow([1.0]), [0.1])


def test_a_factor_that_is_state_is_steered(run):
    problem = run(chain(sgd(1.0), scale(scalar_state("factor", 1.0))), p=0.0)
    problem(1.0)
    problem.program.store.set({"factor": 0.25})
    problem(1.0)
    assert problem["p"] == -1.25


def test_a_schedule_scales_on_a_clock_of_its_own(run):
    problem = run(chain(sgd(1.0), scale_by_schedule(cosine_schedule(1.0, 2))), p=0.0)
    np.testing.assert_allclose(problem.follow([1.0, 1.0, 1.0]), [-1.0, -1.5, -1.5], atol=1e-15)
    assert problem["scale_by_schedule/step_count"] == 3


def test_decay_ahead_of_a_rule_is_a_penalty_and_behind_it_a_pull(run):
    np.testing.assert_allclose(run(chain(add_weight_decay(0.5), sgd(0.1)), p=2.0).follow([1.0]), [1.8])
    np.testing.assert_allclose(run(chain(sgd(0.1), add_weight_decay(0.5)), p=2.0).follow([1.0]), [0.9])


def test_only_what_the_mask_selects_decays(run):
    problem = run(chain(sgd(0.1), add_weight_decay(0.5, mask=where("W"))), W=[2.0], b=[2.0])
    problem([0.0], [0.0])
    assert (problem["W"], problem["b"]) == (1.0, 2.0)


def test_a_trace_is_momentum(run):
    np.testing.assert_allclose(run(chain(trace(0.9), sgd(0.1)), p=0.0).follow([1, 1]), [-0.1, -0.29])
    np.testing.assert_allclose(
        run(chain(trace(0.9, nesterov=True), sgd(0.1)), p=0.0).follow([1, 1]), [-0.19, -0.461]
    )


def test_a_trace_behind_a_rule_accumulates_steps(run):
    problem = run(chain(sgd(0.1), trace(0.9)), p=0.0)
    np.testing.assert_allclose(problem.follow([1, 1]), [-0.1, -0.29])
    np.testing.assert_allclose(problem["trace/velocity/p"], -0.19)


def test_nothing_widens_float32(run):
    rule = chain(
        scale(np.float64(2.0)),
        trace(scalar_state("decay", 0.5)),
        add_weight_decay(0.1),
        sgd(0.1),
        scale_by_schedule(lambda count: pt.cast(count, "float64") * 0 + 1),
    )
    problem = run(rule, dtype="float32", p=[1.0])
    problem([1.0])
    np.testing.assert_allclose(problem["p"], [1 - 0.1 * (2 + 0.1)], rtol=1e-6)
    assert problem["p"].dtype == np.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: scale(math.nan), r"Scale: factor must be a finite number; got nan"),
        (lambda: scale(math.inf), r"Scale: factor must be a finite number; got inf"),
        (lambda: add_weight_decay(-0.1), r"weight_decay must be a finite number of 0 or more; got -0\.1"),
        (lambda: trace(1.0), r"Trace: decay must be a number in \[0, 1\); got 1\.0"),
        (lambda: trace(namespace="/fast"), r"namespace must be one or more words joined by '/'"),
    ],
)
def test_an_impossible_hyperparameter_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: scale("2"), r"Scale: factor must be a finite number; got '2'"),
        (lambda: scale(lambda count: 1.0), r"Scale: factor must be a finite number"),
        (
            lambda: scale_by_schedule(0.1),
            r"schedule must be a schedule, such as cosine_schedule\(1e-3, 10_000\)",
        ),
        (lambda: add_weight_decay(mask=0.1), r"A selector is one of"),
        (lambda: trace(nesterov=None), r"nesterov must be True or False"),
    ],
)
def test_a_hyperparameter_of_the_wrong_kind_is_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_they_are_values():
    assert scale(0.5) == Scale(factor=0.5)
    assert repr(trace(0.5, namespace="slow")) == "Trace(0.5, namespace='slow')"
    assert add_weight_decay(0.1, where("W")) == add_weight_decay(0.1, where("W"))
    assert repr(scale_by_schedule(cosine_schedule(1.0, 5), namespace="mine")) == (
        "ScaleBySchedule(CosineSchedule(1.0, 5), namespace='mine')"
    )
