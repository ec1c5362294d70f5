"""Indexing: reading parts of arrays, and adding to them."""

from __future__ import annotations

from pytensor.tensor import subtensor
from pytensor.tensor.type_other import MakeSlice

from ptml.graphs.fields import FLAG, INDEX, INTEGER, items
from ptml.graphs.registry import register_op

__all__: list[str] = []

_INDEX = {"idx_list": items(INDEX)}

register_op(MakeSlice, fields={})
register_op(subtensor.Subtensor, fields=_INDEX)
register_op(
    subtensor.IncSubtensor,
    fields={
        **_INDEX,
        "set_instead_of_inc": FLAG,
        "destroyhandler_tolerate_aliased": items(items(INTEGER)),
    },
)
register_op(subtensor.AdvancedSubtensor, fields=_INDEX)
register_op(
    subtensor.AdvancedIncSubtensor,
    fields={**_INDEX, "set_instead_of_inc": FLAG, "ignore_duplicates": FLAG},
)
