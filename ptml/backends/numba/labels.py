"""Numba kernels of the checks of targets.

The message is a constant with places for the numbers, which follow it in the exception's arguments: putting
them in is for whoever catches it, because formatting inside a kernel costs seconds of compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from ptml.labels import CheckLabels, CheckProbabilities, CheckShape

# Part of the cache keys: change it with the kernels.
_VERSION = 2


@register_funcify_and_cache_key(CheckShape)
def numba_check_shape(op: CheckShape, node: Apply, **kwargs: Any) -> tuple[Callable, str]:
    message = op.message
    ndim = node.inputs[0].type.ndim

    def check_shape(target, prediction):
        for axis in range(ndim):
            if target.shape[axis] != prediction.shape[axis]:
                raise ValueError(message, prediction.shape, target.shape)
        return target

    return numba_njit(check_shape), _cache_key("shape", message, ndim)


@register_funcify_and_cache_key(CheckLabels)
def numba_check_labels(op: CheckLabels, node: Apply, **kwargs: Any) -> tuple[Callable, str]:
    message = op.message
    # Nothing is exempt where the exempt label is a class like any other.
    exempt = 0 if op.ignore is None else op.ignore

    def check_labels(labels, n_classes):
        n = n_classes.item()
        for label in labels.flat:
            if (label < 0 or label >= n) and label != exempt:
                raise ValueError(message, label, n, n - 1)
        return labels

    return numba_njit(check_labels), _cache_key("labels", message, exempt)


@register_funcify_and_cache_key(CheckProbabilities)
def numba_check_probabilities(op: CheckProbabilities, node: Apply, **kwargs: Any) -> tuple[Callable, str]:
    message, most = op.message, op.most

    def check_probabilities(probabilities):
        for probability in probabilities.flat:
            if probability < 0 or probability > most:
                raise ValueError(message, probability)
        return probabilities

    return numba_njit(check_probabilities), _cache_key("probabilities", message, most)


def _cache_key(*parts: Any) -> str:
    return sha256(f"{__name__} {_VERSION} {parts}".encode()).hexdigest()
