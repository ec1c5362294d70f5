"""Run workloads: first calls one after the other in fresh processes, then steps in interleaved rounds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.benchmarks.frameworks import FRAMEWORKS
from tests.benchmarks.host import ROOT, Failed, Worker

__all__ = ["Plan", "pythons", "run", "versions"]


@dataclass(frozen=True)
class Plan:
    """How to measure.

    Parameters
    ----------
    pythons : dict
        From a framework's name to the interpreter that has it.
    threads : int
    rounds : int
        How often every framework is measured, each once before any is measured again.
    seconds : float
        How long each measurement takes.
    warm : bool
        Whether a second process starts with the first one's caches, and is the one measured.
    tell : callable
        What is done with a line about progress.
    """

    pythons: dict[str, str]
    threads: int = 1
    rounds: int = 9
    seconds: float = 0.4
    warm: bool = True
    tell: Callable[[str], None] = field(default=lambda line: print(line, file=sys.stderr, flush=True))


_VERSIONS = """
import importlib.metadata as metadata, importlib.util as util, json, sys
def version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "from source"
print(json.dumps({package: version(package) for package in sys.argv[1:] if util.find_spec(package)}))
"""


def versions(python: str, packages: Sequence[str]) -> dict[str, str]:
    """Give the versions of those of these packages that an interpreter has, without importing them."""
    command = [python, "-c", _VERSIONS, *packages]
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def pythons(names: Sequence[str], others: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Give the interpreter of each of these frameworks that is there, and the versions of their packages.

    Parameters
    ----------
    names : sequence of str
    others : mapping
        By package, the interpreter for what needs it; ours for the rest.
    """
    chosen: dict[str, str] = {}
    found: dict[str, str] = {}
    for name in names:
        needs = FRAMEWORKS[name].needs
        python = next((others[package] for package in needs if package in others), sys.executable)
        there = versions(python, needs)
        if missing := [package for package in needs if package not in there]:
            print(f"{name} is left out: {python} has no {', '.join(missing)}", file=sys.stderr)
        else:
            chosen[name] = python
            found.update(there)
    return chosen, found


def run(task: str, plan: Plan) -> dict[str, Any]:
    """Measure one task on every framework of the plan.

    Parameters
    ----------
    task : str
        As a worker takes it.

    Returns
    -------
    dict
        ``load``, the machine's load average before each round; and by framework: ``cold`` and ``warm``, what
        the two processes report, ``rounds``, a list of measurements by call, or ``failed``, a text.
    """
    results: dict[str, dict[str, Any]] = {name: {} for name in plan.pythons}
    loads: list[float] = []
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="ptml-benchmark-"))
        workers: dict[str, Worker] = {}
        for name in plan.pythons:
            try:
                workers[name] = _start(task, name, plan, Path(scratch) / name, results[name])
            except Failed as failure:
                results[name]["failed"] = str(failure)
                plan.tell(f"{task}: {name} failed: {failure}")
            else:
                stack.callback(workers[name].close)
        for number in range(plan.rounds):
            loads.append(os.getloadavg()[0])
            # There and back, so that nobody is always the one after the heaviest.
            order = list(workers) if number % 2 == 0 else list(workers)[::-1]
            for name in order:
                try:
                    measured = {
                        call: workers[name].measure(call, plan.seconds)
                        for call in workers[name].ready["calls"]
                    }
                except Failed as failure:
                    results[name] = {"failed": str(failure)}
                    workers.pop(name)
                else:
                    results[name].setdefault("rounds", []).append(measured)
            plan.tell(f"{task}: round {number + 1} of {plan.rounds}, load {loads[-1]:.2f}")
    return {"load": loads, "frameworks": results}


def _start(task: str, name: str, plan: Plan, caches: Path, result: dict[str, Any]) -> Worker:
    """Start the process that is measured, after one that fills the caches where the plan wants it so."""
    caches.mkdir()
    started = ["cold", "warm"] if plan.warm else ["cold"]
    for phase in started:
        worker = Worker(plan.pythons[name], name, task, caches=caches, threads=plan.threads)
        result[phase] = worker.ready
        plan.tell(f"{task}: {name} {phase} in {worker.ready['total']:.1f} s")
        if phase != started[-1]:
            worker.close()
    return worker
