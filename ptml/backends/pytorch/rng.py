"""PyTorch has no generators for PyTensor's random variables."""

from __future__ import annotations

from typing import Any

from pytensor.link.pytorch.dispatch import pytorch_funcify

from ptml.rng import AsGenerator

_NO_RANDOM_VARIABLES = (
    "PyTensor converts no random variables to PyTorch, and pytensor_rng() is for those. Draw with "
    "ptml.random's own uniform, normal, bernoulli or bits, or use another backend."
)


@pytorch_funcify.register(AsGenerator)
def pytorch_as_generator(op: AsGenerator, **kwargs: Any) -> Any:
    raise TypeError(_NO_RANDOM_VARIABLES)
