"""Hyperparameters in graphs: casts that widen nothing, and checks of what only the running graph knows."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.traversal import ancestors
from pytensor.raise_op import CheckAndRaise

from ptml.optim import (
    adadelta,
    adafactor,
    adagrad,
    adam,
    adamax,
    adamw,
    constant_schedule,
    lamb,
    lion,
    muon,
    nadam,
    radam,
    rmsprop,
    rprop,
    scalar_state,
    sgd,
    take_step,
    to_floatx,
)
from ptml.optim.hyperparameters import (
    a_rate,
    as_scalar,
    checked,
    checked_rate,
    number,
    working_dtype,
)


@pytest.mark.parametrize("floatX", ["float32", "float64"])
def test_to_floatx_casts_only_a_variable_of_another_dtype(floatX):
    with pytensor.config.change_flags(floatX=floatX):
        x = pt.vector("x")
        assert to_floatx(x) is x
        for value in (
            0.1,
            3,
            np.float64(0.1),
            np.arange(3),
            pt.lscalar("n"),
            pt.vector("y", dtype="float16"),
        ):
            assert to_floatx(value).dtype == floatX


def test_a_number_enters_a_graph_at_the_dtype_it_is_asked_for():
    assert as_scalar(0.1, "float32").data == np.float32(0.1)
    assert as_scalar(pt.dscalar("rate"), "float32").dtype == "float32"


@pytest.mark.parametrize(
    ("dtype", "works_in"), [("float16", "float32"), ("float32", "float32"), ("float64", "float64")]
)
def test_half_precision_is_computed_in_single(new_parameter, dtype, works_in):
    assert working_dtype(new_parameter([1.0], dtype=dtype)) == works_in


#: Rules with each of their symbolic hyperparameters, a value that will do, and one that will not.
SYMBOLIC = [
    (sgd, {"learning_rate": (0.1, -0.1), "momentum": (0.9, 1.0)}),
    (
        adam,
        {"learning_rate": (0.1, np.nan), "beta1": (0.9, 1.5), "beta2": (0.9, 1.0), "epsilon": (1e-8, -1.0)},
    ),
    (adamw, {"learning_rate": (0.1, np.inf), "weight_decay": (0.1, -1.0), "beta2": (0.9, np.nan)}),
    (nadam, {"learning_rate": (0.1, -1.0), "beta1": (0.9, 1.0), "beta2": (0.9, 1.0)}),
    (adamax, {"learning_rate": (0.1, -1.0), "beta1": (0.9, 1.0), "beta2": (0.9, -0.1)}),
    (
        rmsprop,
        {"learning_rate": (0.1, -1.0), "rho": (0.9, 1.0), "momentum": (0.5, 1.5), "epsilon": (1e-8, -1)},
    ),
    (
        rprop,
        {"learning_rate": (0.1, -1.0), "eta_minus": (0.5, 2.0), "eta_plus": (1.2, 1.0), "max_step": (1, 0)},
    ),
    (adagrad, {"learning_rate": (0.1, -1.0), "epsilon": (1e-8, np.nan)}),
    (adadelta, {"learning_rate": (0.1, -1.0), "rho": (0.9, 1.0), "epsilon": (1e-6, 0.0)}),
    (
        lion,
        {"learning_rate": (0.1, -1.0), "weight_decay": (0.1, -1), "beta1": (0.9, 1.0), "beta2": (0.9, 1.0)},
    ),
    (radam, {"learning_rate": (0.1, -1.0), "beta2": (0.9, 1.0), "threshold": (5.0, 3.0)}),
    (lamb, {"learning_rate": (0.1, -1.0), "weight_decay": (0.1, -1.0), "beta1": (0.9, 1.0)}),
    (muon, {"learning_rate": (0.1, -1.0), "momentum": (0.9, 1.0), "weight_decay": (0.1, np.inf)}),
    (
        adafactor,
        {
            "learning_rate": (0.1, -1.0),
            "decay_rate": (0.8, 0.0),
            "clipping_threshold": (1.0, 0.0),
            "beta1": (0.9, 1.0),
            "weight_decay": (0.1, -1.0),
            "epsilon": (1e-30, 0.0),
            "epsilon_scale": (1e-3, 0.0),
        },
    ),
]


@pytest.mark.parametrize(("make", "given"), SYMBOLIC, ids=lambda value: getattr(value, "__name__", ""))
def test_an_impossible_symbolic_hyperparameter_is_refused_when_the_graph_runs(run, make, given):
    rule = make(**{name: scalar_state(name, good) for name, (good, _) in given.items()})
    problem = run(rule, options={"backend": "numba"}, p=[[1.0, 2.0]])
    problem([[1.0, -1.0]])
    for name, (good, bad) in given.items():
        before = problem.program.state
        problem.program.store.set({name: bad})
        with pytest.raises(
            ValueError, match=rf"{rule.__class__.__name__}: {name} must be .* which the graph"
        ):
            problem([[1.0, -1.0]])
        problem.program.store.set({name: good})
        assert problem.program.state == before


@pytest.mark.backends("c", "jax", "mlx")
def test_the_checks_reach_the_host_on_every_backend(run, backend):
    rule = adam(scalar_state("rate", 0.1, dtype="float32"), beta2=scalar_state("beta2", 0.9, dtype="float32"))
    problem = run(rule, dtype="float32", options={"backend": backend}, p=[1.0])
    problem([1.0])
    before = problem.program.state
    for name, bad, good in (("rate", -1.0, 0.1), ("beta2", 1.0, 0.9)):
        problem.program.store.set({name: bad})
        with pytest.raises(ValueError, match=f"Adam: {'learning_rate' if name == 'rate' else name} must be"):
            problem([1.0])
        problem.program.store.set({name: good})
    assert problem.program.state == before


@pytest.mark.parametrize(("make", "given"), SYMBOLIC, ids=lambda value: getattr(value, "__name__", ""))
def test_plain_numbers_and_schedules_leave_no_check_in_the_graph(new_parameter, make, given):
    rule = make(constant_schedule(0.1))
    steps = take_step(rule, [pt.matrix("g", dtype="float64")], [new_parameter([[1.0]])])
    nodes = {v.owner.op for v in ancestors(list(steps.values())) if v.owner is not None}
    assert not any(isinstance(op, CheckAndRaise) for op in nodes)


def test_what_a_function_gives_as_a_rate_is_checked(run):
    problem = run(sgd(lambda count: 1.0 - count), p=0.0)
    problem(1.0)
    problem(1.0)
    with pytest.raises(ValueError, match="Sgd: learning_rate must be a finite number of 0 or more, and this"):
        problem(1.0)


def test_a_number_needs_no_check_and_a_symbol_has_one(evaluate):
    rule = adam(scalar_state("rate", 0.1), beta1=0.8)
    assert checked(rule, "beta1") == 0.8
    assert isinstance(checked(rule, "learning_rate").owner.op, CheckAndRaise)
    assert evaluate(checked_rate(rule, None)) == 0.1
    assert checked_rate(sgd(0.3), None) == 0.3


def test_one_validator_serves_numbers_and_symbols():
    even = number(lambda value: (value >= 2) & (value < 4), "a number in [2, 4)")
    assert even.within(3.0)
    assert not even.within(4.0)
    assert even.within(pt.constant(3.0)).eval()
    assert not a_rate.within(pt.constant(np.nan)).eval()
