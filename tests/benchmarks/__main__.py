"""The command line: measure, print tables, and keep the numbers."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.frameworks import FRAMEWORKS
from tests.benchmarks.growth import growth_report, run_growth
from tests.benchmarks.measure import Plan, pythons, run
from tests.benchmarks.report import leaves_report, workload_report
from tests.benchmarks.updates import RULES, run_updates, updates_report
from tests.benchmarks.workloads import GROWTH, SIZES, WORKLOADS


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        choices=["steps", "growth", "updates"],
        default="steps",
        help="training steps and calls (unless given), how times grow, or updates of rules alone",
    )
    parser.add_argument(
        "--quick", action="store_true", help="one short round of the smallest, from empty caches alone"
    )
    parser.add_argument(
        "--workloads", nargs="*", choices=WORKLOADS, metavar="NAME", help=", ".join(WORKLOADS)
    )
    parser.add_argument("--only", nargs="+", choices=FRAMEWORKS, metavar="NAME", help=", ".join(FRAMEWORKS))
    parser.add_argument("--mlx", action="store_true", help="measure ptml-mlx too")
    parser.add_argument(
        "--torch-python", default=sys.executable, metavar="PATH", help="an interpreter with torch"
    )
    parser.add_argument(
        "--pytensor-ml-python", default=sys.executable, metavar="PATH", help="one with pytensor-ml"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of every library (default 1)")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default 9)")
    parser.add_argument("--seconds", type=float, help="time of each measurement (default 0.4)")
    parser.add_argument(
        "--leaves", nargs="*", type=int, metavar="N", help="counts of leaves (default 10 100 500)"
    )
    parser.add_argument("--axes", nargs="+", choices=GROWTH, help="what grows (default all)")
    parser.add_argument("--rules", nargs="+", choices=RULES, metavar="NAME", help=", ".join(RULES))
    parser.add_argument("--sizes", nargs="+", choices=SIZES, metavar="SIZE", help=", ".join(SIZES))
    parser.add_argument(
        "--results", type=Path, default=Path(__file__).parent / "results", help="the folder for the numbers"
    )
    return parser.parse_args()


def wanted(options: argparse.Namespace) -> list[str]:
    """Name the frameworks to measure."""
    if options.only:
        return options.only
    if options.what == "updates":
        return [name for name, framework in FRAMEWORKS.items() if framework.updates]
    return [name for name, f in FRAMEWORKS.items() if f.default or (options.mlx and name == "ptml-mlx")]


def processor() -> str:
    """Name the processor."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def show(text: str) -> None:
    """Print a part of the report at once."""
    print(text, end="\n\n", flush=True)


def steps(options: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    """Measure training steps and the overhead of calls."""
    usual = [name for name, workload in WORKLOADS.items() if workload.default]
    workloads, counts = (["small"], []) if options.quick else (usual, [10, 100, 500])
    workloads = workloads if options.workloads is None else options.workloads
    counts = counts if options.leaves is None else options.leaves
    measured: dict[str, Any] = {"workloads": {}, "leaves": None}
    for workload in workloads:
        measured["workloads"][workload] = run(workload, plan)
        show(workload_report(workload, measured["workloads"][workload]))
    if counts:
        chosen = {name: python for name, python in plan.pythons.items() if FRAMEWORKS[name].leaves}
        task = f"leaves:{','.join(map(str, counts))}"
        measured["leaves"] = run(task, dataclasses.replace(plan, pythons=chosen))
        show(leaves_report(counts, measured["leaves"]))
    return measured


def growth(options: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    """Measure how times grow."""
    measured = {}
    for axis in options.axes or GROWTH:
        measured[axis] = run_growth(axis, plan, sizes=2 if options.quick else None)
        show(growth_report(axis, measured[axis]))
    return {"growth": measured}


def updates(options: argparse.Namespace, plan: Plan) -> dict[str, Any]:
    """Measure updates of rules alone."""
    sizes = options.sizes or (["3 tiny"] if options.quick else [size for size in SIZES if size != "3 tiny"])
    measured = {rule: run_updates(rule, sizes, plan) for rule in options.rules or RULES}
    show(updates_report(sizes, measured))
    return {"updates": measured}


def main() -> None:
    """Measure what the command line asks for."""
    options = arguments()
    quick, trains = options.quick, options.what == "steps"
    others = {"torch": options.torch_python, "pytensor_ml": options.pytensor_ml_python}
    chosen, found = pythons(wanted(options), others)
    plan = Plan(
        chosen,
        threads=options.threads,
        rounds=options.rounds or (1 if quick else 9 if trains else 5),
        seconds=options.seconds or (0.05 if quick else 0.4),
        warm=trains and not quick,
    )
    about: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
        "system": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": plan.threads,
        "versions": found,
    }
    print(", ".join([about["time"], about["processor"], f"{about['cores']} cores, threads: {plan.threads}"]))
    show(", ".join(f"{package} {version}" for package, version in found.items()))
    measure = {"steps": steps, "growth": growth, "updates": updates}[options.what]
    measured = {"machine": about, **measure(options, plan)}
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(measured, indent=1), "utf-8")
    print(f"The numbers of every round: {path}")


if __name__ == "__main__":
    main()
