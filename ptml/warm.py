"""Fill the kernel cache ahead: compile and run the programs that common networks are made of.

Kernels do not depend on the sizes of layers, nor on rates and the like, so small networks stand for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytensor

import ptml
from ptml import activations
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import AbsoluteError, BinaryCrossEntropy, CrossEntropy, Huber, SquaredError, supervised_loss
from ptml.optim import adam, adamw, chain, clip_by_global_norm, compile_train, rmsprop, sgd

__all__ = ["warm"]

_BATCH, _FEATURES, _WIDTH, _CLASSES = 8, 6, 5, 4


def warm() -> Iterator[str]:
    """Compile and run one program after the other, at the current ``floatX``.

    Yields
    ------
    str
        What was compiled.

    Examples
    --------
    >>> next(warm())
    'ReLU'
    """
    cross_entropy = CrossEntropy(expect_logits=True)
    for name in ["ReLU", *(name for name in activations.__all__ if name not in ("Activation", "ReLU"))]:
        _run(_network(_activation(name)), cross_entropy, sgd(0.1))
        yield name
    relu = activations.ReLU()
    for rule in (sgd(0.1, momentum=0.9), adam(1e-3), adamw(1e-3), rmsprop(1e-3)):
        _run(_network(relu), cross_entropy, rule)
        yield type(rule).__name__
    _run(_network(relu), cross_entropy, chain(clip_by_global_norm(1.0), adam(1e-3)))
    yield "ClipByGlobalNorm"
    for loss in (SquaredError(), AbsoluteError(), Huber(), BinaryCrossEntropy(expect_logits=True)):
        for n_out in (1, 3):
            _run(_network(relu, n_out=n_out), loss, adam(1e-3))
        yield type(loss).__name__
    _run(_network(relu, dropout=True), cross_entropy, adam(1e-3))
    yield "Dropout"
    for dropout in (False, True):
        _run(_network(relu, norm=True, dropout=dropout), cross_entropy, adam(1e-3))
    yield "BatchNorm"


def _activation(name: str) -> Any:
    return activations.PReLU(n_in=_WIDTH) if name == "PReLU" else getattr(activations, name)()


def _network(
    activation: Any, *, n_out: int = _CLASSES, norm: bool = False, dropout: bool = False
) -> Sequential:
    layers: list[Any] = []
    for n_in in (_FEATURES, _WIDTH):
        layers.append(Linear(n_in=n_in, n_out=_WIDTH))
        if norm:
            layers.append(BatchNorm(n_in=_WIDTH))
        layers.append(activation)
        if dropout:
            layers.append(Dropout(p=0.1))
    return Sequential(*layers, Linear(n_in=_WIDTH, n_out=n_out))


def _run(network: Sequential, loss: Any, rule: Any) -> None:
    X = Input("X", shape=(None, _FEATURES))
    prediction = network(X)
    value, target = supervised_loss(prediction, loss)
    step = compile_train(value, rule, seed=0, backend="numba")
    predict = ptml.compile_predict(prediction, state=step, backend="numba")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((_BATCH, _FEATURES)).astype(pytensor.config.floatX)
    n_out = prediction.type.shape[-1]
    if target.type.dtype.startswith("float"):
        y = rng.integers(0, 2, (_BATCH, n_out)).astype(target.type.dtype)
    else:
        y = rng.integers(0, n_out, _BATCH).astype(target.type.dtype)
    # The state is new at the first call, and written over at the second.
    step(x, y)
    step(x, y)
    predict(x)
