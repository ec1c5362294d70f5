"""Inputs: ordinary PyTensor variables with a checked declaration."""

from __future__ import annotations

import numpy as np
import pytensor
import pytest

from ptml.layers import Input


@pytest.mark.parametrize("floatX", ["float32", "float64"])
def test_an_input_is_a_tensor_of_floatx(floatX):
    with pytensor.config.change_flags(floatX=floatX):
        X = Input("X", (None, 64))
    assert (X.name, X.type.dtype, X.type.shape) == ("X", floatX, (None, 64))
    assert X.owner is None


def test_a_dtype_may_be_given():
    assert Input("tokens", (None, 8), dtype="int64").type.dtype == "int64"


@pytest.mark.parametrize("shape", [(), (3,), (None,), [None, 2], (np.int64(2), None, 0)])
def test_a_shape_is_a_sequence_of_sizes(shape):
    assert Input("X", shape).type.shape == tuple(shape)


@pytest.mark.parametrize("shape", [3, None, "ab", (2.0, 3), ("batch", 3), (True, 3)])
def test_what_is_no_shape_is_refused_by_name(shape):
    with pytest.raises(TypeError, match=r"Input 'X': shape must be a tuple of sizes, None where.*; got "):
        Input("X", shape)


def test_a_negative_size_is_refused_by_name():
    with pytest.raises(ValueError, match=r"Input 'X': shape must be .* \(None, 64\); got \(-1, 3\)"):
        Input("X", (-1, 3))


def test_an_input_without_a_name_is_refused_with_what_to_write():
    with pytest.raises(
        TypeError, match=r"Input's `name` must be a string; got .*Write Input\('X', \(None, 3\)\)"
    ):
        Input((None, 3), "float32")
