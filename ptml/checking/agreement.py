"""One program on several backends: how far apart their results are."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from ptml.backends.modes import KNOWN
from ptml.compile.function import on_backend
from ptml.compile.program import Program
from ptml_state.display import columns

__all__ = ["Agreement", "compare_backends"]


@attrs.frozen(repr=False)
class Agreement:
    """How far the results of backends are from those of the program's own; it prints as a table.

    Attributes
    ----------
    reference : str
        The program's own backend.
    differences : dict
        By backend and then by result (``"output 0"``, or a leaf's address that the call moved), the largest
        difference relative to the largest number in it.
    skipped : dict
        Why a backend did not take part.
    """

    reference: str
    differences: dict[str, dict[str, float]]
    skipped: dict[str, str]

    @property
    def largest(self) -> float:
        """The largest difference of all."""
        return max((d for of in self.differences.values() for d in of.values()), default=0.0)

    def __str__(self) -> str:
        names = list(self.differences)
        results = list(dict.fromkeys(name for of in self.differences.values() for name in of))
        table = [["", *names]]
        table += [[name, *(f"{self.differences[b][name]:.1e}" for b in names)] for name in results]
        text = columns(table, [False, *[True] * len(names)])
        lines = [f"{name} was skipped: {why}" for name, why in self.skipped.items()]
        return "\n".join([f"differences from {self.reference}", text, *lines])

    __repr__ = __str__


def compare_backends(
    program: Program, batch: Sequence[Any], backends: Sequence[str] | None = None
) -> Agreement:
    """Run one call of a program on other backends, and compare its results and the state after it.

    The program, and its store, stay as they are.

    Parameters
    ----------
    program : Program
    batch : sequence of arrays
        What a call takes.
    backends : sequence of str, optional
        Which; all that are installed, besides the program's own, unless given.

    Returns
    -------
    Agreement

    Examples
    --------
    >>> import numpy as np
    >>> import ptml
    >>> from ptml.layers import Input, Linear
    >>> X, fc = Input("X", shape=(None, 2)), Linear("fc", n_in=2, n_out=1)
    >>> program = ptml.function([X], fc(X), seed=0)
    >>> found = ptml.compare_backends(program, [np.ones((3, 2))], ["c"])
    >>> bool(found.largest < 1e-12)
    True
    """
    start = program.store.state
    expected = _results(*program.pure(start, *batch))
    differences: dict[str, dict[str, float]] = {}
    skipped: dict[str, str] = {}
    asked = [name for name in KNOWN if name != program.backend.name] if backends is None else list(backends)
    for name in asked:
        package = KNOWN.get(name)
        if package is not None and importlib.util.find_spec(package) is None:
            skipped[name] = f"{package} is not installed"
            continue
        try:
            other = on_backend(program, name)
        except TypeError as error:
            if backends is not None:
                raise
            skipped[name] = str(error)
            continue
        found = _results(*other.pure(start, *batch))
        differences[name] = {key: _distance(value, found[key]) for key, value in expected.items()}
    return Agreement(program.backend.name, differences, skipped)


def _results(outputs: Any, state: Any) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for value in outputs.values() if isinstance(outputs, dict) else _listed(outputs):
        for one in value.values() if isinstance(value, dict) else [value]:
            found[f"output {len(found)}"] = np.asarray(one)
    return found | {address: np.asarray(value) for address, value in state.items()}


def _listed(outputs: Any) -> Sequence[Any]:
    return outputs if isinstance(outputs, list | tuple) else [outputs]


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    """Give the largest difference, relative to the largest number; infinity where the two are no match."""
    if one.shape != other.shape:
        return float("inf")
    if one.size == 0:
        return 0.0
    if one.dtype.kind not in "fc":
        return 0.0 if np.array_equal(one, other) else float("inf")
    odd = ~np.isfinite(one)
    if not np.array_equal(one[odd], other[odd], equal_nan=True):
        return float("inf")
    gap = np.abs(np.where(odd, 0, one) - np.where(odd, 0, other)).max()
    return float(gap / (np.abs(one[~odd]).max(initial=0.0) or 1.0))
