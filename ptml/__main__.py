"""The command line: ``python -m ptml warm``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence

__all__ = ["main"]

_DTYPES = ("float32", "float64")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    arguments : sequence of str, optional
        What stands behind ``python -m ptml`` unless given.

    Returns
    -------
    int
        0 where all went well.

    Examples
    --------
    >>> main([])  # doctest: +ELLIPSIS
    usage: python -m ptml ...
    2
    """
    parser = argparse.ArgumentParser(prog="python -m ptml", description="Commands of ptml.")
    commands = parser.add_subparsers(dest="command", metavar="command")
    warm = commands.add_parser(
        "warm",
        help="compile the kernels of common networks ahead, and keep them on disk",
        description="Compile the kernels of common networks, and keep them on disk for later processes.",
    )
    warm.add_argument(
        "--backend",
        choices=["numba"],
        default="numba",
        help="numba, the only backend whose kernels ptml keeps",
    )
    warm.add_argument("--dtype", choices=_DTYPES, nargs="+", default=_DTYPES, help="both unless given")
    warm.add_argument("--quiet", action="store_true", help="say nothing unless something is wrong")
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 2
    return _warm(given.dtype, given.quiet)


def _warm(dtypes: Sequence[str], quiet: bool) -> int:
    from ptml.backends.numba.plan.runtime.cache import cache_directory

    directory = cache_directory()
    if directory is None:
        sys.stderr.write("ptml warm: PTML_CACHE_DIR is set to nothing, so no kernels are kept.\n")
        return 1
    start = time.perf_counter()
    compiled = found = 0
    for dtype in dtypes:
        # floatX belongs to the process: each has its own.
        flags = ",".join(filter(None, [os.environ.get("PYTENSOR_FLAGS"), f"floatX={dtype}"]))
        child = subprocess.run(
            [sys.executable, "-c", _CHILD],
            env={**os.environ, "PYTENSOR_FLAGS": flags},
            stdout=subprocess.PIPE,
            text=True,
        )
        if child.returncode:
            return child.returncode
        counts = child.stdout.split()
        compiled, found = compiled + int(counts[-2]), found + int(counts[-1])
    if not quiet:
        seconds = time.perf_counter() - start
        sys.stdout.write(
            f"{compiled} kernels compiled in {seconds:.0f} s, {found} were there already: {directory}\n"
        )
    return 0


_CHILD = """
from ptml.backends.numba.plan.runtime.cache import kernels
from ptml.warm import warm
for _ in warm():
    pass
print(kernels.compiled, kernels.loaded)
"""


if __name__ == "__main__":
    sys.exit(main())
