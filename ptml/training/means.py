"""Means over the steps of an epoch, weighed by rows, that a checkpoint can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

__all__ = ["Means"]


@attrs.define
class Means:
    """The numbers of an epoch so far.

    Of what has a name beginning with ``learning_rate`` it is the last one that counts, of anything else the
    mean, weighed by the rows of each batch.

    Attributes
    ----------
    rows : int
    steps : int
    sums : dict of float
    """

    rows: int = 0
    steps: int = 0
    sums: dict[str, float] = attrs.field(factory=dict)

    def add(self, values: Mapping[str, float], rows: int) -> None:
        """Count a step.

        Parameters
        ----------
        values : mapping
        rows : int
            Of its batch.
        """
        self.rows += rows
        self.steps += 1
        for name, value in values.items():
            self.sums[name] = value if _is_rate(name) else self.sums.get(name, 0.0) + value * rows

    def numbers(self) -> dict[str, float]:
        """Give the numbers that they come to."""
        rows = max(self.rows, 1)
        return {name: value if _is_rate(name) else value / rows for name, value in self.sums.items()}

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Means:
        """Give what `attrs.asdict` made of one."""
        return cls(saved["rows"], saved["steps"], dict(saved["sums"]))


def _is_rate(name: str) -> bool:
    return name.partition("/")[0] == "learning_rate"
