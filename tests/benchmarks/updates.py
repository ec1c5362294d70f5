"""The update of a rule alone, on parameters and gradients that are there: ours, optax's and PyTorch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.benchmarks.frameworks import FRAMEWORKS
from tests.benchmarks.measure import Plan, run
from tests.benchmarks.report import OURS, load, micro, ratio, table, typical
from tests.benchmarks.workloads import SIZES

__all__ = ["RULES", "run_updates", "updates_report"]

#: The rules, by the names that frameworks have them under.
RULES = (
    *("sgd", "momentum", "adam", "adamw", "nadam", "adamax", "rmsprop", "rmsprop-centered", "rprop"),
    *("adagrad", "adadelta", "lion", "radam", "amsgrad", "lamb", "muon", "adafactor"),
)

#: Rules whose time on large matrices is that of products, seconds of them.
SMALL_ONLY = ("muon",)


def run_updates(rule: str, sizes: Sequence[str], plan: Plan) -> dict[str, Any]:
    """Measure one rule's update on each of these sizes."""
    fitting = [size for size in sizes if rule not in SMALL_ONLY or SIZES[size][0] > 2]
    return run(f"updates:{rule}:{','.join(fitting)}", plan)


def updates_report(sizes: Sequence[str], measured: Mapping[str, Any]) -> str:
    """Write the tables: ratios and kernel calls, times, and how far the parameters moved."""
    names = list(dict.fromkeys(name for result in measured.values() for name in result["frameworks"]))
    others = [name for name in names if name != OURS]
    ratios, times, moves = [], [], []
    for rule, result in measured.items():
        found = {name: r for name, r in result["frameworks"].items() if "rounds" in r}
        has = {size: [n for n, r in found.items() if size in r["rounds"][0]] for size in sizes}
        row = [rule]
        for size in sizes:
            ours = OURS in has[size]
            row += [ratio(found, OURS, o, size) if ours and o in has[size] else "-" for o in others]
            row.append(_kernels(found[OURS], size) if ours else "-")
        ratios.append(row)
        cells = [(found.get(name, {}), size, name in has[size]) for size in sizes for name in names]
        times.append([rule, *(micro(typical(r, size)) if there else "-" for r, size, there in cells)])
        moves.append([rule, *(_moved(found.get(name)) for name in names)])
    loads = [number for result in measured.values() for number in result["load"]]
    shown = [f"{size}: {what}" for size in sizes for what in [*(f"x {name}" for name in others), "kernels"]]
    parts = [
        "## Updates alone",
        f"Arrays of float32: {'; '.join(map(_described, sizes))}.",
        load([min(loads), max(loads)]),
        f"### {OURS}'s time over each peer's, and its kernel calls",
        table(["rule", *shown], ratios),
        "### µs",
        table(["rule", *(f"{size}: {name}" for size in sizes for name in names)], times),
        "### How far the first parameter moved in the first steps, root mean square: conventions differ",
        table(["rule", *names], moves),
        *_absent(measured),
    ]
    return "\n\n".join(parts)


def _described(size: str) -> str:
    count, shape = SIZES[size]
    return f"{size}, {count} of {' x '.join(map(str, shape))}"


def _kernels(result: Mapping[str, Any], size: str) -> str:
    count = result["cold"].get("kernels", {}).get(size)
    return "-" if count is None else str(count)


def _moved(result: Mapping[str, Any] | None) -> str:
    return "-" if result is None else f"{next(iter(result['cold']['moved'].values())):.3e}"


def _absent(measured: Mapping[str, Any]) -> list[str]:
    """Say what failed, but for the rules that a peer is known to lack."""
    return [
        f"{rule}: {name} failed: {result['failed']}"
        for rule, results in measured.items()
        for name, result in results["frameworks"].items()
        if "failed" in result and not (FRAMEWORKS[name].peer and "it has no" in result["failed"])
    ]
