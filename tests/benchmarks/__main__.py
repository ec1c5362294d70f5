"""The command line: measure, print tables, and keep the numbers."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.frameworks import FRAMEWORKS
from tests.benchmarks.measure import Plan, installed, run
from tests.benchmarks.report import leaves_report, workload_report
from tests.benchmarks.workloads import WORKLOADS

PACKAGES = ("ptml", "pytensor", "numba", "numpy", "jax", "equinox", "optax", "mlx", "torch")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round of the small network, no overhead")
    parser.add_argument("--workloads", nargs="*", choices=WORKLOADS, metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--only", nargs="+", choices=FRAMEWORKS, metavar="NAME", help=", ".join(FRAMEWORKS))
    parser.add_argument("--mlx", action="store_true", help="measure ptml-mlx too")
    parser.add_argument("--torch-python", default=sys.executable, metavar="PATH", help="an interpreter with torch")
    parser.add_argument("--threads", type=int, default=1, help="threads of every library (default 1)")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default 9)")
    parser.add_argument("--seconds", type=float, help="time of each measurement (default 0.4)")
    parser.add_argument("--leaves", nargs="*", type=int, metavar="N", help="counts of leaves (default 10 100)")
    parser.add_argument(
        "--results", type=Path, default=Path(__file__).parent / "results", help="the folder for the numbers"
    )
    return parser.parse_args()


def frameworks(options: argparse.Namespace) -> dict[str, str]:
    """Give the interpreter of each framework that is wanted and there."""
    wanted = options.only or [
        name for name, f in FRAMEWORKS.items() if f.default or (options.mlx and name == "ptml-mlx")
    ]
    found = {}
    for name in wanted:
        python = options.torch_python if "torch" in FRAMEWORKS[name].needs else sys.executable
        if installed(python, FRAMEWORKS[name].needs):
            found[name] = python
        else:
            print(f"left out: {name}, since {python} lacks one of {FRAMEWORKS[name].needs}", file=sys.stderr)
    return found


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """Say where and with what the numbers came about."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "threads": options.threads,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main() -> None:
    """Measure what the command line asks for."""
    options = arguments()
    quick = options.quick
    plan = Plan(
        frameworks(options),
        threads=options.threads,
        rounds=options.rounds or (1 if quick else 9),
        seconds=options.seconds or (0.05 if quick else 0.4),
        warm=not quick,
    )
    workloads = options.workloads if options.workloads is not None else ["small"] if quick else list(WORKLOADS)
    counts = options.leaves if options.leaves is not None else [] if quick else [10, 100]
    about = machine(options)
    print(f"{about['time']}, {about['processor']}, {about['cores']} cores, {plan.threads} thread(s) a library")
    print(", ".join(f"{name} {version}" for name, version in about["versions"].items()), end="\n\n")
    measured: dict[str, Any] = {"machine": about, "workloads": {}, "leaves": None}
    for workload in workloads:
        measured["workloads"][workload] = run(workload, plan)
        print(workload_report(workload, measured["workloads"][workload]), end="\n\n", flush=True)
    if counts:
        measured["leaves"] = run(f"leaves:{','.join(map(str, counts))}", plan)
        print(leaves_report(counts, measured["leaves"]), end="\n\n", flush=True)
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(measured, indent=1), "utf-8")
    print(f"The numbers of every round: {path}")


if __name__ == "__main__":
    main()
