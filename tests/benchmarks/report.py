"""Tables of what was measured, in Markdown."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from statistics import median
from typing import Any

from tests.benchmarks.frameworks import FRAMEWORKS
from tests.benchmarks.worker import STEPS
from tests.benchmarks.workloads import WORKLOADS

__all__ = [
    "AGREE",
    "OURS",
    "failures",
    "leaves_report",
    "load",
    "measured_ones",
    "micro",
    "ratio",
    "table",
    "to_first_step",
    "typical",
    "verdict",
    "workload_report",
]

#: How far, relatively, losses may be from those that NumPy computes in float64.
AGREE = 1e-4

#: What ptml's backends are compared with, besides the peers.
OURS = "ptml-numba"

Results = dict[str, dict[str, Any]]


def workload_report(workload: str, measured: dict[str, Any]) -> str:
    """Write the tables of one workload: steps and predictions, then starts."""
    chosen = WORKLOADS[workload]
    results: Results = measured["frameworks"]
    parts = [
        f"## {chosen.title} ({chosen.shown})",
        load(measured["load"]),
        _steps(workload, results),
        _starts(results),
        *_memory(results),
        *failures(results),
    ]
    return "\n\n".join(parts)


def leaves_report(counts: Sequence[int], measured: dict[str, Any]) -> str:
    """Write the table of the overhead of calls: N trivial updates of N leaves."""
    results: Results = measured["frameworks"]
    rows = []
    for name, result in measured_ones(results).items():
        for kind in dict.fromkeys(call.split(":")[0] for call in result["rounds"][0]):
            times = [typical(result, f"{kind}:{count}") for count in counts]
            row = [name if kind == "call" else f"{name}, {kind}", *(micro(seconds) for seconds in times)]
            if len(counts) > 1:
                row.append(micro((times[-1] - times[0]) / (counts[-1] - counts[0])))
            rows.append(row)
    head = ["µs a call", *(f"N = {count}" for count in counts), *(["a leaf"] if len(counts) > 1 else [])]
    parts = [
        "## Overhead of a call: N arrays of 8 numbers, each updated once",
        load(measured["load"]),
        table(head, rows),
        *failures(results),
    ]
    return "\n\n".join(parts)


def verdict(workload: str, result: dict[str, Any]) -> str:
    """Say whether the first losses are right.

    Returns
    -------
    str
        ``"agree"``, ``"fall"`` where there is nothing to compare with, or what is wrong.
    """
    expected = WORKLOADS[workload].losses(STEPS)
    for phase in ("cold", "warm"):
        if phase not in result:
            continue
        losses = result[phase]["losses"]
        if not (all(map(math.isfinite, losses)) and result[phase]["finite"]):
            return f"**not finite ({phase})**"
        if expected is None:
            if losses[-1] >= losses[0]:
                return f"**do not fall ({phase})**"
            continue
        error = max(abs(have - want) / want for have, want in zip(losses, expected, strict=True))
        if error > AGREE:
            return f"**off by {error:.0e} ({phase})**"
    return "fall" if expected is None else "agree"


def _steps(workload: str, results: Results) -> str:
    ran = measured_ones(results)
    best = {call: _best_peer(ran, call) for call in ("step", "predict")}
    rows = []
    for name, result in sorted(ran.items(), key=lambda item: typical(item[1], "step")):
        rows.append(
            [
                name,
                micro(typical(result, "step")),
                micro(min(r["step"]["p10"] for r in result["rounds"])),
                micro(median(r["step"]["cpu"] for r in result["rounds"])),
                ratio(ran, name, best["step"], "step"),
                ratio(ran, name, OURS, "step"),
                micro(typical(result, "predict")),
                ratio(ran, name, best["predict"], "predict"),
                f"{max(r['predict']['peak'] for r in result['rounds']) / 1e6:.0f}",
                f"{result['cold']['peak'] / 1e6:.0f}",
                verdict(workload, result),
            ]
        )
    head = ["framework", "step µs", "best round's p10", "CPU µs", "x best peer", f"x {OURS}"]
    head += ["predict µs", "x best peer", "peak MB", "peak MB cold", "first losses"]
    return table(head, rows)


def _starts(results: Results) -> str:
    phases = [phase for phase in ("cold", "warm") if any(phase in result for result in results.values())]
    complete = {name: result for name, result in results.items() if all(phase in result for phase in phases)}
    rows = []
    for phase in phases:
        peers = [to_first_step(r[phase]) for name, r in complete.items() if FRAMEWORKS[name].peer]
        for name, result in complete.items():
            start = result[phase]
            total = to_first_step(start)
            compiled = start["compile"]
            rows.append(
                [
                    name,
                    phase,
                    *(f"{start[part]:.2f}" for part in ("import", "build")),
                    "-" if compiled is None else f"{compiled:.2f}",
                    f"{start['first_step']:.2f}",
                    f"{total:.2f}",
                    f"{total / min(peers):.1f}" if peers else "-",
                    f"{start['predictor'] + start['first_prediction']:.2f}",
                ]
            )
    head = ["framework", "caches", "import s", "build s", "compile s", "first call s"]
    head += ["to first step s", "x best peer", "predictor and its first call s"]
    return table(head, rows)


def _memory(results: Results) -> list[str]:
    """Say what ptml's programs hold, where their backends know."""
    rows = []
    for name, result in measured_ones(results).items():
        held = result[max(phase for phase in ("cold", "warm") if phase in result)].get("memory")
        if held is not None and held["peak"] is not None:
            lived = held["state"] + held["planned"]
            numbers = [held["state"], held["planned"], held["batch"] + held["results"], held["peak"]]
            rows.append([name, *(f"{number / 1e6:.3f}" for number in numbers), f"{held['peak'] / lived:.3f}"])
    head = ["program.memory()", "state MB", "planned MB", "batch and results MB", "peak MB"]
    return [table([*head, "peak over state and planned"], rows)] if rows else []


def to_first_step(start: dict[str, Any]) -> float:
    return start["import"] + start["build"] + (start["compile"] or 0) + start["first_step"]


def measured_ones(results: Results) -> Results:
    return {name: result for name, result in results.items() if "rounds" in result}


def typical(result: dict[str, Any], call: str) -> float:
    """Give the median of the rounds' medians."""
    return median(measured[call]["median"] for measured in result["rounds"])


def _best_peer(results: Results, call: str) -> str | None:
    peers = [name for name in results if FRAMEWORKS[name].peer]
    return min(peers, key=lambda name: typical(results[name], call), default=None)


def ratio(results: Results, name: str, other: str | None, call: str) -> str:
    """Write the median of the ratios of single rounds: the machine's speed drifts from round to round."""
    if other not in results:
        return "-"
    pairs = zip(results[name]["rounds"], results[other]["rounds"], strict=True)
    return f"{median(mine[call]['median'] / theirs[call]['median'] for mine, theirs in pairs):.2f}"


def micro(seconds: float) -> str:
    micro = seconds * 1e6
    return f"{micro:.2f}" if micro < 10 else f"{micro:.1f}" if micro < 100 else f"{micro:.0f}"


def load(loads: Sequence[float]) -> str:
    text = f"Load average before each round: {', '.join(f'{load:.1f}' for load in loads)}."
    if median(loads) > (os.cpu_count() or 1):
        text += " **Others were at work: trust CPU times and the best round, and measure again.**"
    return text


def failures(results: Results) -> list[str]:
    return [f"{name} failed: {result['failed']}" for name, result in results.items() if "failed" in result]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    padded = [
        [cell.ljust(widths[0]), *(c.rjust(w) for c, w in zip(rest, widths[1:], strict=True))]
        for cell, *rest in lines
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)
