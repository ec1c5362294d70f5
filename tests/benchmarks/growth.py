"""How step and compile time grow with depth, width and batch: times of three sizes, and fitted exponents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tests.benchmarks.measure import Plan, run
from tests.benchmarks.report import failures, load, measured_ones, table, to_first_step, typical, verdict
from tests.benchmarks.workloads import GROWTH

__all__ = ["exponent", "growth_report", "run_growth"]


def run_growth(axis: str, plan: Plan, sizes: int | None = None) -> dict[int, Any]:
    """Measure the networks that grow along an axis.

    Parameters
    ----------
    axis : str
        A key of ``GROWTH``.
    plan : Plan
    sizes : int, optional
        How many of its sizes, from the smallest; all unless given.
    """
    return {size: run(name, plan) for size, name in list(GROWTH[axis].items())[:sizes]}


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """Give the slope of a line through the logarithms: time grows as the size to this power.

    Examples
    --------
    >>> exponent([4, 16, 64], [1.0, 4.0, 16.0])
    1.0
    """
    x, y = ([math.log(value) for value in values] for values in (sizes, times))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - mean_x) ** 2 for a in x)


def growth_report(axis: str, measured: Mapping[int, Any]) -> str:
    """Write the table of one axis: a row for each framework, the exponents last."""
    sizes = list(measured)
    everywhere = [
        name
        for name in measured_ones(measured[sizes[0]]["frameworks"])
        if all(name in measured_ones(measured[size]["frameworks"]) for size in sizes)
    ]
    rows = []
    for name in everywhere:
        results = [measured[size]["frameworks"][name] for size in sizes]
        steps = [typical(result, "step") for result in results]
        starts = [to_first_step(result["cold"]) - result["cold"]["import"] for result in results]
        verdicts = {verdict(GROWTH[axis][size], result) for size, result in zip(sizes, results, strict=True)}
        row = [name, *(f"{1e6 * step:.0f}" for step in steps), f"{exponent(sizes, steps):.2f}"]
        row += [*(f"{start:.2f}" for start in starts), f"{exponent(sizes, starts):.2f}", ", ".join(verdicts)]
        rows.append(row)
    head = ["framework", *(f"step µs, {size}" for size in sizes), "exponent"]
    head += [*(f"cold s, {size}" for size in sizes), "exponent", "first losses"]
    parts = [
        f"## Growth with {axis}: {', '.join(map(str, sizes))}",
        load([number for size in sizes for number in measured[size]["load"]]),
        table(head, rows),
        "Cold: from the description of the network to its first step, the framework imported, caches empty.",
        *(line for size in sizes for line in failures(measured[size]["frameworks"])),
    ]
    return "\n\n".join(parts)
