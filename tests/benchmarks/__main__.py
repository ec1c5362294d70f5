"""The command line: measure, print tables, and keep the numbers."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.frameworks import FRAMEWORKS
from tests.benchmarks.measure import Plan, run, versions
from tests.benchmarks.report import leaves_report, workload_report
from tests.benchmarks.workloads import WORKLOADS


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one short round of the small network, no overhead"
    )
    parser.add_argument(
        "--workloads", nargs="*", choices=WORKLOADS, metavar="NAME", help=", ".join(WORKLOADS)
    )
    parser.add_argument("--only", nargs="+", choices=FRAMEWORKS, metavar="NAME", help=", ".join(FRAMEWORKS))
    parser.add_argument("--mlx", action="store_true", help="measure ptml-mlx too")
    parser.add_argument(
        "--torch-python", default=sys.executable, metavar="PATH", help="an interpreter with torch"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of every library (default 1)")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (default 9)")
    parser.add_argument("--seconds", type=float, help="time of each measurement (default 0.4)")
    parser.add_argument(
        "--leaves", nargs="*", type=int, metavar="N", help="counts of leaves (default 10 100)"
    )
    parser.add_argument(
        "--results", type=Path, default=Path(__file__).parent / "results", help="the folder for the numbers"
    )
    return parser.parse_args()


def frameworks(options: argparse.Namespace) -> tuple[dict[str, str], dict[str, str]]:
    """Give the interpreter of each framework that is wanted and there, and the versions of their packages."""
    usual = [name for name, f in FRAMEWORKS.items() if f.default or (options.mlx and name == "ptml-mlx")]
    pythons: dict[str, str] = {}
    found: dict[str, str] = {}
    for name in options.only or usual:
        needs = FRAMEWORKS[name].needs
        python = options.torch_python if "torch" in needs else sys.executable
        there = versions(python, needs)
        if missing := [package for package in needs if package not in there]:
            print(f"{name} is left out: {python} has no {', '.join(missing)}", file=sys.stderr)
        else:
            pythons[name] = python
            found.update(there)
    return pythons, found


def processor() -> str:
    """Name the processor."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main() -> None:
    """Measure what the command line asks for."""
    options = arguments()
    quick = options.quick
    pythons, found = frameworks(options)
    plan = Plan(
        pythons,
        threads=options.threads,
        rounds=options.rounds or (1 if quick else 9),
        seconds=options.seconds or (0.05 if quick else 0.4),
        warm=not quick,
    )
    usual = [name for name, workload in WORKLOADS.items() if workload.default]
    workloads, counts = (["small"], []) if quick else (usual, [10, 100])
    workloads = workloads if options.workloads is None else options.workloads
    counts = counts if options.leaves is None else options.leaves

    about: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
        "system": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": plan.threads,
        "versions": found,
    }
    print(", ".join([about["time"], about["processor"], f"{about['cores']} cores, threads: {plan.threads}"]))
    print(", ".join(f"{package} {version}" for package, version in found.items()), end="\n\n", flush=True)
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
