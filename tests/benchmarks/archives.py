"""Archives of a large state: saving beside a raw write of the same bytes, opening lazily, memory.

``python -m tests.benchmarks.archives`` prints one table. Raw writes and saves take turns, each into a new
file, and end with the bytes on the disk (fsync). Medians are shown, and the ratio of the best of each.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ptml_state import Leaf, State, inspect, load_state, save_state

__all__ = ["main"]

LEAVES = 100


def large_state(megabytes: float) -> State:
    """Make a state of some megabytes, in leaves of one size."""
    rng = np.random.default_rng(0)
    numbers = int(megabytes * 1e6 / 4 / LEAVES)

    def leaf(number: int) -> Leaf:
        # Not zeros: file systems have short cuts for those. Read-only, so that the state takes it as it is.
        array = rng.random(numbers, "float32")
        array.flags.writeable = False
        return Leaf(f"layer{number}/W", array)

    return State.of(map(leaf, range(LEAVES)))


def raw_write(state: State, path: Path) -> None:
    """Write the same bytes, and nothing else."""
    with path.open("wb", buffering=0) as file:
        for array in state.values():
            file.write(array)
        os.fsync(file.fileno())


def seconds(call: Callable[[], Any]) -> float:
    """Time one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_megabytes() -> float:
    """Say how much memory this process held at most."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss starts at what the parent held
        lines = status.read_text("utf-8").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def held_while_saving(megabytes: float, folder: Path) -> float:
    """Give the peak memory of saving over the size of the state; run in a process of its own."""
    before = peak_megabytes()
    state = large_state(megabytes)
    save_state(state, folder / "peak.safetensors")
    return (peak_megabytes() - before) / (state.nbytes / 1e6)


def in_a_process(megabytes: float, folder: Path) -> float:
    """Run :func:`held_while_saving` elsewhere."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.benchmarks.archives",
        "--megabytes",
        str(megabytes),
    ]
    done = subprocess.run(
        [*command, "--peak", str(folder)], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    return float(done.stdout)


def measured(megabytes: float, rounds: int, pause: float, folder: Path) -> dict[str, float]:
    """Measure everything once; see the table in :func:`main`."""
    state = large_state(megabytes)
    path, raw = folder / "state.safetensors", folder / "raw"
    writers: dict[str, Callable[[], None]] = {
        "raw": lambda: raw_write(state, raw),
        "save": lambda: save_state(state, path),
    }
    times: dict[str, list[float]] = {
        name: [] for name in ("raw", "save", "open", "inspect", "layer", "whole")
    }
    for number in range(rounds):
        # Disks slow down after a while of writing: the first and the second turn alternate.
        for name in sorted(writers, reverse=number % 2 == 1):
            path.unlink(missing_ok=True)
            raw.unlink(missing_ok=True)
            time.sleep(pause)
            times[name].append(seconds(writers[name]))
        save_state(state, path)
        times["open"].append(seconds(lambda: load_state(path)))
        times["inspect"].append(seconds(lambda: inspect(path)))
        times["layer"].append(seconds(lambda: load_state(path, where="layer7")["layer7/W"].sum()))
        times["whole"].append(seconds(lambda: load_state(path, mapped=False)))
    found = {name: statistics.median(values) for name, values in times.items()}
    best = min(times["save"]) / min(times["raw"])
    return {
        **found,
        "ratio": found["save"] / found["raw"],
        "best": best,
        "peak": in_a_process(megabytes, folder),
    }


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.archives", description=__doc__)
    parser.add_argument("--megabytes", type=float, default=1000, help="size of the state (default 1000)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--pause", type=float, default=2, help="seconds of rest before a write (default 2)")
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--peak", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak is not None:
        print(held_while_saving(options.megabytes, options.peak))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measured(options.megabytes, options.rounds, options.pause, Path(folder))
    print(f"{options.megabytes:.0f} MB in {LEAVES} leaves, medians of {options.rounds} rounds")
    print(f"raw write and fsync       {found['raw']:8.3f} s")
    ratios = f"{found['ratio']:.2f} x raw, the best of each {found['best']:.2f} (at most 1.3)"
    print(f"save_state                {found['save']:8.3f} s   {ratios}")
    print(f"peak memory while saving  {found['peak']:8.2f} x the state (at most 1.2)")
    print(f"load_state, lazily        {1e3 * found['open']:8.2f} ms  (at most 50)")
    print(f"inspect                   {1e3 * found['inspect']:8.2f} ms")
    print(f"load and sum one layer    {1e3 * found['layer']:8.2f} ms")
    print(f"load_state, read whole    {found['whole']:8.3f} s")


if __name__ == "__main__":
    main()
