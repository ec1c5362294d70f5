"""Checks of shapes: at a layer's call, in the running graph, and on every backend."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.graph.replace import vectorize_graph

import ptml
from ptml.checks import (
    AxisCheck,
    RowCount,
    SameSize,
    check_axis,
    check_floating,
    check_ndim,
    check_same_size,
    row_count,
)
from ptml.layer import Layer

PYTHON = Mode(linker="py", optimizer="fast_compile")
ROOT = Path(__file__).parents[2]


class Width(Layer):
    """A layer that takes four features, and whose output is scaled by the number of rows."""

    minimum: int = 2

    def build(self, X):
        X = check_axis(self, X, 4, wants="(..., 4 {features})")
        n = row_count(self, X, (0, 1), minimum=self.minimum, wants="rows", hint="Take more.")
        return X / n.astype(X.type.dtype)


def test_a_static_shape_is_checked_when_the_layer_is_called():
    X = pt.tensor("X", shape=(2, None, 3))
    with pytest.raises(
        ValueError, match=r"w \(Width\) takes \(\.\.\., 4 \{features\}\); got \(2, None, 3\)"
    ) as e:
        Width("w")(X)
    assert "axis -1 is 3, where 4 is declared" in str(e.value)
    assert "while calling w (Width)" in e.value.__notes__


def test_a_static_shape_that_fits_leaves_no_check_in_the_graph():
    X = pt.tensor("X", shape=(2, 3, 4))
    layer = Width("w")
    assert check_axis(layer, X, 4, wants="") is X
    assert row_count(layer, X, (0, 1), minimum=2, wants="").data == 6


def test_channels_first_are_recognized():
    with pytest.raises(ValueError, match=r"Axis 1 has 4: move it to the end, the layout is channels last\."):
        Width("w")(pt.tensor("X", shape=(None, 4, 3)))


def test_an_axis_counts_from_either_end():
    layer, X = Width("w"), pt.tensor("X", shape=(5, None, 7))
    assert check_axis(layer, X, 6, axis=1, wants="").type.shape == (5, 6, 7)
    assert (
        check_axis(layer, X, 6, axis=-2, wants="").owner.op
        == check_axis(layer, X, 6, axis=1, wants="").owner.op
    )
    with pytest.raises(ValueError, match=r"axis -3 is 5, where 6 is declared"):
        check_axis(layer, X, 6, axis=0, wants="")


def test_too_few_axes_are_refused_by_name():
    with pytest.raises(ValueError, match=r"w \(Width\) takes \(rows, 4\); got 1 axes: \(4,\)"):
        check_ndim(Width("w"), pt.tensor("X", shape=(4,)), minimum=2, wants="(rows, 4)")


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_what_is_no_float_is_refused_with_the_cast_to_write(dtype):
    X = pt.matrix("X", dtype=dtype)
    with pytest.raises(TypeError, match=rf"w \(Width\) computes .*{dtype}.*X\.astype\('float64'\)"):
        check_floating(Width("w"), X, dtype="float64")
    with pytest.raises(TypeError, match=r"Width computes .*X\.astype\('float32'\)"):
        check_floating(Width(), X)


def test_an_input_wider_than_the_parameters_is_refused():
    with pytest.raises(
        TypeError, match=r"w \(Width\) has float32 parameters; got .*float64.*floatX='float64'"
    ):
        check_floating(Width("w"), pt.matrix("X", dtype="float64"), dtype="float32")
    check_floating(Width("w"), pt.matrix("X", dtype="float16"), dtype="float32")


def test_every_backend_checks_the_shape_that_arrives(backend, float32):
    X = pt.tensor("X", shape=(None, None, None))
    program = ptml.function([X], Width("w", minimum=3)(X), backend=backend)
    x = np.arange(24, dtype="float32").reshape(2, 3, 4)
    np.testing.assert_allclose(np.asarray(program(x)), x / 6, rtol=1e-6)
    message = (
        r"w \(Width\) takes \(\.\.\., 4 \{features\}\); got \(2, 3, 5\): axis -1 is 5, where 4 is declared"
    )
    with pytest.raises(ValueError, match=message):
        program(np.ones((2, 3, 5), "float32"))
    with pytest.raises(
        ValueError, match=r"w \(Width\) takes at least 3 rows; got shape \(2, 1, 4\)\. Take more\."
    ):
        program(np.ones((2, 1, 4), "float32"))
    np.testing.assert_allclose(np.asarray(program(x[:1])), x[:1] / 3, rtol=1e-6)


class Together(Layer):
    """A layer of two tensors with as many rows."""

    def build(self, X, other):
        return check_same_size(self, X, other, axis=0, wants="as many {rows}") + other.sum()


def test_every_backend_compares_the_shapes_that_arrive(backend, float32):
    X, other = pt.tensor("X", shape=(None, 2)), pt.tensor("other", shape=(None, 3))
    program = ptml.function([X, other], Together("t")(X, other), backend=backend)
    x, y = np.ones((4, 2), "float32"), np.ones((4, 3), "float32")
    np.testing.assert_array_equal(np.asarray(program(x, y)), x + 12)
    message = r"t \(Together\) takes as many \{rows\}; got \(4, 2\) and \(3, 3\), which differ along axis -2"
    with pytest.raises(ValueError, match=message):
        program(x, y[:3])


def test_static_shapes_are_compared_when_the_layer_is_called():
    X, other = pt.tensor("X", shape=(4, 2)), pt.tensor("other", shape=(3, 3))
    with pytest.raises(ValueError, match=r"t \(Together\) takes .*; got \(4, 2\) and \(3, 3\)"):
        Together("t")(X, other)
    assert check_same_size(Together("t"), X, X, axis=0, wants="") is X


def test_the_gradient_passes_through_a_comparison_to_what_is_given_back():
    X, other = pt.tensor("X", shape=(None, 2)), pt.tensor("other", shape=(None, 2))
    gradients = pytensor.grad((Together("t")(X, other) ** 2).sum(), [X, other])
    x, y = np.arange(4.0).reshape(2, 2), np.arange(4.0, 8.0).reshape(2, 2)
    d_x, d_other = ptml.function([X, other], gradients, mode=PYTHON)(x, y)
    np.testing.assert_allclose(d_x, 2 * (x + y.sum()))
    np.testing.assert_allclose(d_other, np.full((2, 2), 2 * (x + y.sum()).sum()))


def test_too_few_rows_are_an_error_of_the_run_also_where_the_shape_is_static():
    X = pt.tensor("X", shape=(1, 1, 4))
    program = ptml.function([X], Width("w")(X), mode=PYTHON)
    with pytest.raises(ValueError, match=r"at least 2 rows; got shape \(1, 1, 4\)"):
        program(np.ones((1, 1, 4)))


def test_checks_stay_where_the_optimizer_rewrites():
    X = pt.tensor("X", shape=(None, None, None))
    mode = Mode(linker="py", optimizer="fast_run")
    program = ptml.function([X], pytensor.grad((Width("w")(X) ** 2).sum(), X), mode=mode)
    with pytest.raises(ValueError, match=r"got \(2, 3, 5\)"):
        program(np.ones((2, 3, 5)))
    with pytest.raises(ValueError, match=r"got shape \(1, 1, 4\)"):
        program(np.ones((1, 1, 4)))


def test_the_gradient_passes_through_a_check_and_not_into_a_count():
    X = pt.tensor("X", shape=(None, None, None))
    gradient = pytensor.grad((Width("w")(X) ** 2).sum(), X)
    x = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_allclose(ptml.function([X], gradient, mode=PYTHON)(x), 2 * x / 36)


def test_a_check_of_one_example_is_that_of_a_batch():
    X = pt.matrix("X", shape=(None, None))
    checked = AxisCheck("w", -1, 4, "4")(X) * RowCount("w", (-2,), 1, "rows")(X)
    batch = pt.tensor3("batch")
    out = pytensor.function([batch], vectorize_graph(checked, {X: batch}), mode=PYTHON)
    x = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_allclose(out(x), 3 * x)
    with pytest.raises(ValueError, match=r"got \(2, 3, 1\)"):
        out(x[..., :1])
    same = vectorize_graph(SameSize("w", -1, "")(X, X + 1), {X: batch})
    np.testing.assert_allclose(pytensor.function([batch], same, mode=PYTHON)(x), x)


def test_checks_know_the_shapes_that_they_give():
    X = pt.matrix("X")
    checked = AxisCheck("w", -1, 4, "4")(X)
    assert checked.type.shape == (None, 4)
    shape = pytensor.function([X], checked.shape, mode=PYTHON)
    np.testing.assert_array_equal(shape(np.ones((2, 4))), [2, 4])
    count = RowCount("w", (-2,), 1, "rows")(X)
    assert (count.type.dtype, count.type.shape) == ("int64", ())
    np.testing.assert_array_equal(pytensor.function([X], count.shape, mode=PYTHON)(np.ones((2, 4))), [])


def test_checks_print_what_they_check():
    X = pt.matrix("X")
    text = pytensor.dprint([AxisCheck("fc", -1, 4, "4")(X), RowCount("bn", (-2,), 2, "rows")(X)], file="str")
    assert "AxisCheck{fc, axis=-1, size=4}" in text
    assert "RowCount{bn, at least 2}" in text
    assert "SameSize{cat, axis=-2}" in pytensor.dprint(SameSize("cat", -2, "")(X, X), file="str")


# What numba writes to its cache has to be found by a process that did not write it.
_WARM = """
import numpy as np, pytensor.tensor as pt, ptml
from ptml.checks import AxisCheck, RowCount
X = pt.matrix("X")
checked = [AxisCheck("w", -1, 4, "4")(X), RowCount("w", (-2,), 2, "rows")(X)]
program = ptml.function([X], checked, backend="numba")
print(program(np.ones((2, 4)))[1])
for shape in ((2, 5), (1, 4)):
    try:
        program(np.ones(shape))
    except ValueError as error:
        print(error)
"""


@pytest.mark.backends("numba")
def test_numba_kernels_are_found_in_the_cache_of_another_process(backend):
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", _WARM], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "2",
            "w takes 4; got (2, 5): axis -1 is 5, where 4 is declared.",
            "w takes at least 2 rows; got shape (1, 4).",
        ]
