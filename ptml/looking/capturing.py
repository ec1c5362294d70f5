"""Activations as further outputs of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from pytensor.graph.basic import Variable

from ptml.looking.calls import Call, calls_of
from ptml_state.where import find

__all__ = ["capture"]


@attrs.frozen
class _Member:
    """A call as selectors see it."""

    value: Any
    address: str
    call: Call

    @property
    def kind(self) -> type:
        return type(self.value)


def capture(outputs: Any, where: Any) -> tuple[Any, dict[str, Any]]:
    """Give a graph together with what some of its layers give, to compute it, differentiate or train on it.

    Parameters
    ----------
    outputs : tensor, or sequence of tensors
        What networks gave, or a loss.
    where : selector
        Which layers: a glob of names, a type, a predicate, or a combination of them, as for
        :func:`ptml.select`.

    Returns
    -------
    outputs : tensor, or list of tensors
        Equal to those given, computed from the captured ones. Compile these, and the gradient of a loss among
        them with respect to an activation is ``pytensor.grad(loss, captured["fc1"])``.
    captured : dict
        By the layers' names, in the order of their calls; a further call of one layer is ``"fc1#2"``. A layer
        that gives several tensors has a tuple.

    Raises
    ------
    KeyError
        If a name matches no layer that is called.

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.activations import ReLU
    >>> from ptml.layers import Input, Linear, Sequential
    >>> net = Sequential(Linear("fc1", n_in=2, n_out=3), ReLU(), Linear("fc2", n_in=3, n_out=1))
    >>> output, taken = ptml.capture(net(Input("X", shape=(None, 2))), "fc*")
    >>> look = ptml.compile_predict([output, taken["fc1"]], state=ptml.init(net, seed=0))
    >>> [array.shape for array in look(np.ones((4, 2)))]
    [(4, 1), (4, 3)]
    """
    single = isinstance(outputs, Variable)
    listed: Sequence[Variable] = [outputs] if single else list(outputs)
    flat, calls = calls_of(listed)
    members = [_Member(call.layer, call.name, call) for call in calls]
    found = find(where, members, what="the graph")
    captured = {
        member.address: member.call.outputs[0]
        if len(member.call.outputs) == 1
        else tuple(member.call.outputs)
        for member in found
    }
    return (flat[0] if single else flat), captured
