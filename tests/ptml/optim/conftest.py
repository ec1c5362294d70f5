"""Small problems for transforms: parameters without layers, and gradients fed in step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

from ptml import function
from ptml.initializers import Constant
from ptml.optim import take_step
from ptml_state import Role, Slot, SlotVariable

#: Quick to compile, and without rewrites: what a graph says is what is computed.
PLAIN = Mode(linker="py", optimizer="fast_compile")


def parameter_of(value: Any, name: str = "p", dtype: str = "float64") -> SlotVariable:
    """Give the handle of a parameter that starts at a value."""
    start = np.asarray(value, dtype)
    return Slot(name, Role.PARAMETER, dtype, start.shape, Constant(start)).handle


class Run:
    """A rule at work on parameters whose gradients the test feeds in.

    Parameters
    ----------
    rule : transform
    starts : values of the parameters, by name
    dtype : str
    """

    def __init__(
        self, rule: Any, *, dtype: str = "float64", options: dict | None = None, **starts: Any
    ) -> None:
        self.parameters = [parameter_of(value, name, dtype) for name, value in starts.items()]
        self.gradients = [pt.tensor(f"g_{p.name}", dtype=dtype, shape=p.type.shape) for p in self.parameters]
        self.dtype = dtype
        steps = take_step(rule, self.gradients, self.parameters)
        self.program = function(self.gradients, [], updates=steps, seed=0, **(options or {"mode": PLAIN}))

    def __call__(self, *gradients: Any) -> None:
        """Make one step."""
        self.program(*(np.asarray(gradient, self.dtype) for gradient in gradients))

    def __getitem__(self, address: str) -> np.ndarray:
        """Give a leaf's value as it is now."""
        return np.asarray(self.program.state[address])

    def follow(self, gradients: Sequence[Any], address: str = "p") -> np.ndarray:
        """Step through gradients of one parameter, and give where it was after each."""
        visited = []
        for gradient in gradients:
            self(gradient)
            visited.append(self[address])
        return np.array(visited)


@pytest.fixture(autouse=True)
def quick_to_compile() -> Iterator[None]:
    """Compile what names no mode without rewrites and kernels."""
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        yield


@pytest.fixture
def new_parameter() -> Callable[..., SlotVariable]:
    return parameter_of


@pytest.fixture
def run() -> type[Run]:
    return Run


@pytest.fixture
def evaluate() -> Callable[..., Any]:
    """Give values of expressions whose slots are drawn, from their inputs in the order they were made."""

    def value_of(expressions: Any, *values: Any) -> Any:
        return function(None, expressions, seed=0, mode=PLAIN)(*values)

    return value_of
