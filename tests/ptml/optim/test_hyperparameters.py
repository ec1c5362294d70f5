"""Hyperparameters in graphs: casts that widen nothing."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from ptml.optim import to_floatx
from ptml.optim.hyperparameters import as_scalar, working_dtype


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
