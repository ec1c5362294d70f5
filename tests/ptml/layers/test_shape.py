"""Layers that rearrange axes, against NumPy."""

from __future__ import annotations

import pickle

import attrs
import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.layers import Concatenate, Flatten, Input, Squeeze

PYTHON = Mode(linker="py", optimizer="fast_compile")


def _run(layer, *arrays, shapes=None):
    inputs = [Input(f"x{k}", (None,) * a.ndim if shapes is None else shapes[k]) for k, a in enumerate(arrays)]
    return ptml.function(inputs, layer(*inputs), mode=PYTHON)(*arrays)


def _numbers(*shape):
    return np.arange(float(np.prod(shape))).reshape(shape)


@pytest.mark.parametrize(
    ("start", "shape", "wanted"),
    [(1, (2, 3, 4, 5), (2, 60)), (2, (2, 3, 4, 5), (2, 3, 20)), (0, (2, 3), (6,)), (-2, (2, 3, 4), (2, 12))],
)
def test_flatten_takes_axes_together_in_order(start, shape, wanted):
    x = _numbers(*shape)
    np.testing.assert_array_equal(_run(Flatten(start_axis=start), x), x.reshape(wanted))
    static = Flatten(start_axis=start)(Input("X", (None, *shape[1:])))
    assert static.type.shape[1:] == wanted[1:]


def test_flatten_of_an_empty_batch_keeps_the_features():
    assert _run(Flatten(), np.zeros((0, 3, 4))).shape == (0, 12)
    assert _run(Flatten(), np.zeros((0, 3, 4)), shapes=[(None, 3, 4)]).shape == (0, 12)


@pytest.mark.parametrize("start", [2, -3])
def test_flatten_from_an_axis_that_is_not_there_names_the_layer(start):
    message = rf"flat \(Flatten\) has start_axis={start}; got a tensor of 2 axes, \(None, 3\)"
    with pytest.raises(ValueError, match=message):
        Flatten("flat", start_axis=start)(Input("X", (None, 3)))


def test_the_gradient_of_flatten_has_the_inputs_shape():
    X = Input("X", (None, 3, 4))
    weights = Input("weights", (None, 12))
    gradient = pytensor.grad((Flatten()(X) * weights).sum(), X)
    w = _numbers(2, 12)
    got = ptml.function([X, weights], gradient, mode=PYTHON)(np.ones((2, 3, 4)), w)
    np.testing.assert_array_equal(got, w.reshape(2, 3, 4))


@pytest.mark.parametrize(("axis", "wanted"), [(1, (2, 3, 1)), (-1, (2, 1, 3)), ((1, -1), (2, 3))])
def test_squeeze_drops_the_axes_that_it_names(axis, wanted):
    x = _numbers(2, 1, 3, 1)
    np.testing.assert_array_equal(_run(Squeeze(axis=axis), x), x.reshape(wanted))


def test_squeeze_drops_all_axes_known_to_be_one():
    x = _numbers(2, 1, 3, 1)
    got = _run(Squeeze(), x, shapes=[(None, 1, 3, 1)])
    np.testing.assert_array_equal(got, x.reshape(2, 3))
    assert Squeeze()(Input("X", (None, 1))).type.shape == (None,)


def test_squeeze_of_an_axis_of_another_size_names_the_layer():
    with pytest.raises(
        ValueError, match=r"s \(Squeeze\) takes a tensor whose axis 1 has size 1; got \(None, 3\)"
    ):
        Squeeze("s", axis=-1)(Input("X", (None, 3)))
    with pytest.raises(
        ValueError, match=r"s \(Squeeze\) takes a tensor whose axis 1 has size 1; got \(2, 3\)"
    ):
        _run(Squeeze("s", axis=1), np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"s \(Squeeze\) has axis=2; got a tensor of 2 axes"):
        Squeeze("s", axis=2)(Input("X", (None, 3)))


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_concatenate_joins_along_an_axis(axis):
    shapes = [(2, 3), (2, 3), (2, 3)]
    shapes[1] = tuple(5 if k == axis % 2 else n for k, n in enumerate(shapes[1]))
    arrays = [_numbers(*shape) for shape in shapes]
    np.testing.assert_array_equal(_run(Concatenate(axis=axis), *arrays), np.concatenate(arrays, axis=axis))


def test_concatenate_of_one_is_that_one():
    np.testing.assert_array_equal(_run(Concatenate(), _numbers(2, 3)), _numbers(2, 3))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(None, 3), (3,)], r"takes tensors of as many axes each; got \(None, 3\), \(3,\)"),
        ([(4, 3), (5, 3)], r"takes .* axis 1 alone; got \(5, 3\) and \(4, 3\), which differ along axis -2"),
        ([(), ()], r"has axis=-1; got a tensor of 0 axes"),
        ([], r"takes one tensor or more; got none"),
    ],
)
def test_tensors_that_do_not_fit_together_are_refused_by_name(shapes, message):
    with pytest.raises(ValueError, match=rf"cat \(Concatenate\) {message}"):
        Concatenate("cat")(*(Input(f"x{k}", shape) for k, shape in enumerate(shapes)))


@pytest.mark.parametrize(
    "shapes", [[(4, 3), (None, 3)], [(None, 3), (4, 3), (None, None)], [(None, None)] * 2]
)
def test_sizes_that_only_the_run_shows_are_checked_there(shapes):
    arrays = [np.ones((4, 3)) for _ in shapes]
    assert _run(Concatenate("cat"), *arrays, shapes=shapes).shape == (4, 3 * len(shapes))
    arrays[-1] = np.ones((5, 3))
    message = r"cat \(Concatenate\) takes tensors .* axis 1 alone; got \(5, 3\) and \(4, 3\)"
    with pytest.raises(ValueError, match=message):
        _run(Concatenate("cat"), *arrays, shapes=shapes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Flatten("f", start_axis=1.0), r"f \(Flatten\): start_axis must be an integer; got 1.0"),
        (lambda: Concatenate("c", axis=None), r"c \(Concatenate\): axis must be an integer; got None"),
        (
            lambda: Squeeze("s", axis="all"),
            r"axis must be an integer, a tuple of integers or None; got 'all'",
        ),
        (lambda: Squeeze(1), r"Squeeze's `name` must be a string; got 1\. Write Squeeze\(axis=1\)"),
    ],
)
def test_what_is_no_axis_is_refused_by_name(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    "layer", [Flatten(), Flatten("f", start_axis=2), Squeeze(axis=[0, 1]), Concatenate(axis=0)], ids=repr
)
def test_they_are_values(layer):
    for twin in (pickle.loads(pickle.dumps(layer)), attrs.evolve(layer), eval(repr(layer))):
        assert twin == layer
        assert hash(twin) == hash(layer)
        assert repr(twin) == repr(layer)
