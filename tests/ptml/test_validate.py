"""Validators: what they let through, and errors that name the module, the argument and the value."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from ptml import validate
from ptml.initializers import Zeros
from ptml.layer import Layer
from ptml.module import Module


def _module(validator, base=Module):
    class Thing(base):
        value: object = attrs.field(validator=validator)

    return Thing


@pytest.mark.parametrize(
    ("validator", "good", "bad", "wants"),
    [
        (validate.positive_int, (1, np.int64(3)), (0, -2), "a positive integer"),
        (validate.integer(0, "a count"), (0, 5), (-1,), "a count"),
        (validate.finite, (-1.5, 0, np.float32(2.0)), (float("nan"), float("inf")), "a finite number"),
        (validate.positive, (1e-9, 3), (0.0, -1, float("nan"), float("inf")), "a positive number"),
        (validate.non_negative, (0, 0.0, 2.5), (-1e-9, float("nan")), "a number of 0 or more"),
        (validate.real(lambda x: x < 1, "less than 1"), (0.5,), (1.0, float("nan")), "less than 1"),
    ],
)
def test_numbers_are_checked_for_their_range(validator, good, bad, wants):
    thing = _module(validator)
    for value in good:
        assert thing(value=value).value == value
    for value in bad:
        with pytest.raises(ValueError, match=rf"Thing: value must be {wants}; got {value}\."):
            thing(value=value)


@pytest.mark.parametrize("validator", [validate.positive_int, validate.finite, validate.positive])
@pytest.mark.parametrize("value", ["1", None, True, [1.0]])
def test_what_is_no_number_is_refused(validator, value):
    with pytest.raises(TypeError, match=r"Thing: value must be a .*; got "):
        _module(validator)(value=value)


def test_flags_axes_and_initializers_are_checked_for_their_type():
    assert _module(validate.flag)(value=False).value is False
    with pytest.raises(TypeError, match="value must be True or False; got 1"):
        _module(validate.flag)(value=1)
    assert _module(validate.an_axis)(value=-2).value == -2
    with pytest.raises(TypeError, match=r"value must be an integer; got 1\.5"):
        _module(validate.an_axis)(value=1.5)
    for axes in (None, 1, (0, -1)):
        assert _module(validate.axes_or_none)(value=axes).value == axes
    with pytest.raises(TypeError, match=r"an integer, a tuple of integers or None; got \(0, None\)"):
        _module(validate.axes_or_none)(value=(0, None))
    assert _module(validate.an_initializer)(value=Zeros()).value == Zeros()
    assert callable(_module(validate.an_initializer)(value=lambda rng, shape, dtype: None).value)
    with pytest.raises(TypeError, match=r"got the class Zeros\. Write value=Zeros\(\)"):
        _module(validate.an_initializer)(value=Zeros)
    with pytest.raises(TypeError, match=r"must be an initializer, such as Zeros\(\); got 0"):
        _module(validate.an_initializer)(value=0)


def test_a_layer_is_named_by_name_and_class_and_others_by_class():
    thing = _module(validate.positive, Layer)
    with pytest.raises(ValueError, match=r"^act \(Thing\): value must be a positive number; got 0\.$"):
        thing("act", value=0)
    with pytest.raises(ValueError, match=r"^Thing: value must be"):
        thing(value=0)
    assert validate.described(thing("act", value=1)) == "act (Thing)"
    assert validate.described(thing(value=1)) == "Thing"
    assert validate.described(_module(validate.flag)(value=True)) == "Thing"
