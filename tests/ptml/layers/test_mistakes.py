"""Mistakes with shapes: each raises before any number comes out, and names the layer and the axis.

A line of `WRITTEN` is what somebody writes, and what the error says. Those of `RUN` show only in the running
graph, whose sizes were not known before. The lines of the families of layers that take images and sequences
stand in ``mistakes_by_family.py``.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import ptml
from ptml.layers import (
    AvgPool1D,
    BatchNorm,
    Checkpoint,
    Concatenate,
    Conv1D,
    Dropout,
    DropPath,
    Embedding,
    Flatten,
    GroupNorm,
    Input,
    InstanceNorm,
    Lambda,
    LayerNorm,
    LearnedPositions,
    Linear,
    LowRank,
    Parallel,
    Repeat,
    Residual,
    RMSNorm,
    RotaryPositions,
    Scanned,
    Sequential,
    SinusoidalPositions,
    SpatialDropout,
    Squeeze,
    WeightNorm,
)


class Mistake(NamedTuple):
    """What is written, and the error."""

    write: Callable[[], Any]
    error: type[Exception]
    #: What its message must say: the layer, the axis, the sizes.
    says: str


def X(*shape, dtype=None, axes=None):
    return Input("X", shape, dtype, axes=axes)


def linear(*inputs):
    return Linear("here", n_in=4, n_out=2)(*inputs)


FIRST = r"Axis 1 has 3: move it to the end, the layout is channels last"

WRITTEN = {
    "a wrong width": Mistake(
        lambda: linear(X(None, 3)), ValueError, r"here \(Linear\).*axis -1 is 3, where 4"
    ),
    "a scalar for vectors": Mistake(lambda: linear(X()), ValueError, r"here \(Linear\) takes .*got 0 axes"),
    "features first": Mistake(
        lambda: linear(X(None, 4, 9)), ValueError, r"here.*Axis 1 has 4: move it to the"
    ),
    "integers for floats": Mistake(
        lambda: linear(X(None, 4, dtype="int64")), TypeError, r"here \(Linear\) comp"
    ),
    "two inputs for one": Mistake(lambda: linear(X(None, 4), X(None, 4)), TypeError, r"here takes 1 tensor"),
    "half a feature": Mistake(
        lambda: Linear("here", n_in=4.5, n_out=2),
        TypeError,
        r"here \(Linear\): n_in must be a positive integer",
    ),
    "no features": Mistake(
        lambda: Linear("here", n_in=0, n_out=2),
        ValueError,
        r"here \(Linear\): n_in must be a positive integer",
    ),
    "negative features": Mistake(
        lambda: Linear("here", n_in=3, n_out=-2), ValueError, r"here \(Linear\): n_out must be a positive"
    ),
    "True as a size": Mistake(
        lambda: Linear("here", n_in=True, n_out=2), TypeError, r"here \(Linear\): n_in must be a positive"
    ),
    "a norm of a vector": Mistake(
        lambda: BatchNorm("here", n_in=4)(X(4)), ValueError, r"here \(BatchNorm\) takes .*got 1 axes"
    ),
    "a norm of another width": Mistake(
        lambda: BatchNorm("here", n_in=4)(X(None, 5)), ValueError, r"here \(BatchNorm\).*axis -1 is 5"
    ),
    "a norm of channels first": Mistake(
        lambda: BatchNorm("here", n_in=3)(X(None, 3, 8, 8)), ValueError, rf"here \(BatchNorm\).*{FIRST}"
    ),
    "a norm of declared channels first": Mistake(
        lambda: BatchNorm("here", n_in=8)(X(None, 8, 8, 8, axes="NCHW")),
        ValueError,
        r"here \(BatchNorm\).*NCHW\. Write X\.transpose\(0, 2, 3, 1\)",
    ),
    "layer norm over time": Mistake(
        lambda: LayerNorm("here", n_in=3)(X(None, 3, 8)), ValueError, rf"here \(LayerNorm\).*{FIRST}"
    ),
    "RMS norm of another width": Mistake(
        lambda: RMSNorm("here", n_in=3)(X(None, 8)), ValueError, r"here \(RMSNorm\).*axis -1 is 8, where 3"
    ),
    "groups that do not divide": Mistake(
        lambda: GroupNorm("here", n_in=4, n_groups=3),
        ValueError,
        r"here \(GroupNorm\): n_in must be a multiple",
    ),
    "group norm of channels first": Mistake(
        lambda: GroupNorm("here", n_in=3, n_groups=1)(X(None, 3, 8, 8)),
        ValueError,
        rf"here \(GroupNorm\).*{FIRST}",
    ),
    "group norm of a vector": Mistake(
        lambda: GroupNorm("here", n_in=4, n_groups=2)(X(4)), ValueError, r"here \(GroupNorm\) takes .*1 axes"
    ),
    "instance norm without positions": Mistake(
        lambda: InstanceNorm("here", n_in=4)(X(None, 4)), ValueError, r"here \(InstanceNorm\).*got 2 axes"
    ),
    "instance norm of channels first": Mistake(
        lambda: InstanceNorm("here", n_in=3)(X(None, 3, 8, 8)), ValueError, rf"here \(InstanceNorm\).*{FIRST}"
    ),
    "channels of a vector": Mistake(
        lambda: SpatialDropout("here")(X(3)), ValueError, r"here \(SpatialDropout\) takes .*got 1 axes"
    ),
    "channel dropout of channels first": Mistake(
        lambda: SpatialDropout("here")(X(None, 8, 8, 8, axes="NCHW")), ValueError, r"here \(Spat.*transpose"
    ),
    "examples of a scalar": Mistake(lambda: DropPath("here")(X()), ValueError, r"here \(DropPath\).*0 axes"),
    "dropping all": Mistake(lambda: Dropout("here", p=1.0), ValueError, r"here \(Dropout\): p must be"),
    "dropout of integers": Mistake(
        lambda: Dropout("here")(X(None, 4, dtype="int64")), TypeError, r"here \(Dropout\) computes with float"
    ),
    "floats for ids": Mistake(
        lambda: Embedding("here", n_embeddings=4, n_features=2)(X(None, 4)),
        TypeError,
        r"here \(Embedding\) takes integer ids",
    ),
    "a projection of another width": Mistake(
        lambda: Embedding("here", n_embeddings=4, n_features=2).attend(X(None, 4)),
        ValueError,
        r"here \(Embedding\).*axis -1 is 4, where 2",
    ),
    "positions of a vector": Mistake(
        lambda: SinusoidalPositions("here", n_features=4)(X(4)), ValueError, r"here \(Sinus.*got 1 axes"
    ),
    "positions of another width": Mistake(
        lambda: SinusoidalPositions("here", n_features=4)(X(None, 5, 7)),
        ValueError,
        r"here \(SinusoidalPositions\).*axis -1 is 7",
    ),
    "more steps than positions": Mistake(
        lambda: LearnedPositions("here", n_positions=5, n_features=4)(X(None, 6, 4)),
        ValueError,
        r"here \(LearnedPositions\) has 5 positions.*axis -2 is 6",
    ),
    "time where features belong": Mistake(
        lambda: LearnedPositions("here", n_positions=9, n_features=4)(X(None, 4, 5)),
        ValueError,
        r"here \(LearnedPositions\).*axis -1 is 5",
    ),
    "odd features to turn": Mistake(
        lambda: RotaryPositions("here")(X(None, 6, 3)),
        ValueError,
        r"here \(RotaryPositions\).*\(None, 6, 3\)",
    ),
    "turning along no axis": Mistake(
        lambda: RotaryPositions("here", axis=-3)(X(6, 4)), ValueError, r"here \(RotaryPositions\) has axis=-3"
    ),
    "turning along the features": Mistake(
        lambda: RotaryPositions("here", axis=-1),
        ValueError,
        r"here \(RotaryPositions\): axis must be -2 or less",
    ),
    "flattening from no axis": Mistake(
        lambda: Flatten("here", start_axis=3)(X(None, 4)), ValueError, r"here \(Flatten\) has start_axis=3"
    ),
    "flattening from half an axis": Mistake(
        lambda: Flatten("here", start_axis=1.5), TypeError, r"here \(Flatten\): start_axis must be an integer"
    ),
    "squeezing what is not 1": Mistake(
        lambda: Squeeze("here", axis=1)(X(None, 4)), ValueError, r"here \(Squeeze\).*axis -1 is 4, where 1"
    ),
    "squeezing no axis": Mistake(
        lambda: Squeeze("here", axis=5)(X(None, 4)), ValueError, r"here \(Squeeze\) has axis=5"
    ),
    "joining other rows": Mistake(
        lambda: Concatenate("here")(X(2, 3), X(4, 3)),
        ValueError,
        r"here \(Concatenate\).*differ along axis -2",
    ),
    "joining other ranks": Mistake(
        lambda: Concatenate("here")(X(2, 3), X(2, 3, 1)), ValueError, r"here \(Concatenate\).*as many axes"
    ),
    "joining along no axis": Mistake(
        lambda: Concatenate("here", axis=2)(X(2, 3), X(2, 3)), ValueError, r"here \(Concatenate\) has axis=2"
    ),
    "adding another width": Mistake(
        lambda: Residual(Linear("fc", n_in=3, n_out=4), name="here")(X(None, 3)),
        ValueError,
        r"here \(Residual\).*differ along axis -1",
    ),
    "adding branches of other widths": Mistake(
        lambda: Parallel(
            Linear("a", n_in=3, n_out=4), Linear("b", n_in=3, n_out=5), combine="add", name="here"
        )(X(None, 3)),
        ValueError,
        r"here \(Parallel\).*differ along axis -1",
    ),
    "joining branches of other ranks": Mistake(
        lambda: Parallel(Flatten(), Lambda(lambda X: X), name="here")(X(None, 3, 3)),
        ValueError,
        r"here \(Parallel\) takes tensors of as many axes",
    ),
    "layers that do not go together": Mistake(
        lambda: Sequential(Linear("fc", n_in=3, n_out=4), Linear("here", n_in=5, n_out=4))(X(None, 3)),
        ValueError,
        r"here \(Linear\).*axis -1 is 4, where 5",
    ),
    "copies that do not go together": Mistake(
        lambda: Repeat(2, Linear("here", n_in=3, n_out=4))(X(None, 3)),
        ValueError,
        r"here1 \(Linear\).*axis -1",
    ),
    "a loop whose width changes": Mistake(
        lambda: Scanned(2, Linear("here", n_in=3, n_out=4))(X(None, 3)),
        ValueError,
        r"here \(Scanned\) loops over .*has to give what it takes: .*\(\?, 3\)\) and gives .*\(\?, 4\)\)",
    ),
    "a loop that loses an axis": Mistake(
        lambda: Scanned(2, Lambda(lambda X: X[0], name="here"))(X(None, 3)), ValueError, r"here \(Scanned\)"
    ),
    "a rank above the weight's": Mistake(
        lambda: LowRank("here", base=Linear("fc", n_in=3, n_out=4), rank=4),
        ValueError,
        r"here \(LowRank\): rank",
    ),
    "an adapter of another width": Mistake(
        lambda: LowRank("here", base=Linear("fc", n_in=3, n_out=4), rank=2)(X(None, 4)),
        ValueError,
        r"here \(LowRank\).*axis -1 is 4, where 3",
    ),
    "a normalized weight of another width": Mistake(
        lambda: WeightNorm(Linear("here", n_in=3, n_out=4))(X(None, 4)),
        ValueError,
        r"here \(Linear\).*axis -1",
    ),
    "a norm along no axis of a weight": Mistake(
        lambda: WeightNorm(Linear("here", n_in=3, n_out=4), axis=2),
        ValueError,
        r"here/weight_norm .*no axis 2",
    ),
    "a checkpoint of another width": Mistake(
        lambda: Checkpoint(Linear("here", n_in=3, n_out=4))(X(None, 4)),
        ValueError,
        r"here \(Linear\).*axis -1",
    ),
}

_FILE = runpy.run_path(str(Path(__file__).with_name("mistakes_by_family.py")))
WRITTEN.update({name: Mistake(*line) for name, line in _FILE["WRITTEN"].items()})


@pytest.mark.parametrize("mistake", WRITTEN)
def test_a_mistake_is_found_when_it_is_written(mistake):
    write, error, says = WRITTEN[mistake]
    with pytest.raises(error, match=says):
        write()


def test_the_list_is_long():
    assert len(WRITTEN) + len(RUN) >= 60


class Run(NamedTuple):
    """A layer, the shape that is declared for its input, and the one that data comes in."""

    layer: Callable[[], Any]
    declared: tuple[int | None, ...]
    data: tuple[int, ...]
    says: str


RUN = {
    "a wrong width": Run(
        lambda: Linear("here", n_in=4, n_out=2), (None, None), (2, 3), r"here \(Linear\).*axis -1 is 3"
    ),
    "a norm of channels first": Run(
        lambda: BatchNorm("here", n_in=3), (None,) * 4, (2, 3, 4, 4), r"here \(BatchNorm\).*axis -1 is 4"
    ),
    "a norm of one value": Run(
        lambda: BatchNorm("here", n_in=3), (None, 3), (1, 3), r"here \(BatchNorm\) takes at least 2 values"
    ),
    "a kernel longer than the data": Run(
        lambda: Conv1D("here", in_channels=3, out_channels=2, kernel_size=5),
        (None, None, 3),
        (2, 4, 3),
        r"here \(Conv1D\) needs at least 5 positions .*axis -2; got 4",
    ),
    "a window longer than the data": Run(
        lambda: AvgPool1D("here", kernel_size=5),
        (None, None, 3),
        (2, 4, 3),
        r"here \(AvgPool1D\).*axis -2; got 4",
    ),
    "more steps than positions": Run(
        lambda: LearnedPositions("here", n_positions=3, n_features=2),
        (None, None, 2),
        (2, 4, 2),
        r"here \(LearnedPositions\)",
    ),
    "adding another length": Run(
        lambda: Residual(Lambda(lambda X: X[:, 1:]), name="here"),
        (None, None),
        (2, 4),
        r"here \(Residual\).*differ along axis -1",
    ),
    "squeezing what is not 1": Run(
        lambda: Squeeze("here", axis=1), (None, None), (2, 4), r"here \(Squeeze\).*axis -1 is 4, where 1"
    ),
}


@pytest.mark.parametrize("mistake", RUN)
def test_a_mistake_that_only_data_shows_is_found_when_it_runs(mistake):
    make, declared, data, says = RUN[mistake]
    X = Input("X", declared)
    program = ptml.function([X], make()(X), seed=0)
    with pytest.raises(ValueError, match=says):
        program(np.ones(data))
