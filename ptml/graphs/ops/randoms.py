"""PyTensor's random variables, each by the name of its class."""

from __future__ import annotations

from pytensor.tensor.random import basic
from pytensor.tensor.random.op import RandomVariable

from ptml.graphs.fields import DTYPE, TEXT, choice
from ptml.graphs.registry import register_op

__all__: list[str] = []

_METHOD = {"method": choice("cholesky", "svd", "eigh")}


def _is_distribution(value: object) -> bool:
    """Say whether something is a random variable's class, and no base of such classes."""
    own = isinstance(value, type) and issubclass(value, RandomVariable) and value.__module__ == basic.__name__
    return own and hasattr(value, "name")


for _kind in filter(_is_distribution, list(vars(basic).values())):
    # Those of arrays of any number of axes, such as a permutation, have a signature for each number.
    _fields = {"dtype": DTYPE, "signature": TEXT, **(_METHOD if "method" in _kind.__props__ else {})}
    register_op(_kind, fields=_fields)
