"""MLX kernel of loops: Python's own, over iterations that MLX computes.

MLX compiles what a Python function does, once for given shapes, and knows no loop. Where the whole program is
compiled, its iterations are written out while it is traced; a length that is a constant, or follows from
shapes, is known then. When a loop ends with a condition is known only as it runs: then one iteration is
compiled, and the rest of the program is not.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import mlx.core as mx
from pytensor.link.mlx.dispatch import mlx_funcify

from ptml.backends.loops import UnrolledScan

#: An unrolled loop is compiled iteration by iteration, and past this many nodes that takes minutes.
MOST_NODES = 20_000

_TRACED_LENGTH = (
    "MLX writes a loop's iterations out when it compiles, and the number of steps of {loop} is computed from "
    "values at run time. Write it as a constant, or take it from the shape of an array, as x.shape[0]."
)
_TOO_LONG = (
    "MLX writes a loop's iterations out when it compiles, and {steps} steps of {nodes} operations in {loop} "
    "are more than the {most} that it is given. Use another backend, or shorter sequences."
)


def _shown(op: UnrolledScan) -> str:
    return f"the loop {op.name!r}" if op.name else "a loop"


def _length(op: UnrolledScan, steps: Any) -> int:
    try:
        known = int(steps)
    except ValueError as error:
        raise TypeError(_TRACED_LENGTH.format(loop=_shown(op))) from error
    nodes = len(op.fgraph.apply_nodes)
    if not op.info.as_while and known * nodes > MOST_NODES:
        raise ValueError(_TOO_LONG.format(loop=_shown(op), steps=known, nodes=nodes, most=MOST_NODES))
    return known


def _last(items: list[Any], length: int, like: mx.array) -> mx.array:
    """Stack the last of a trace, as many as its buffer has room for."""
    kept = items[max(len(items) - length, 0) :]
    return mx.stack(kept) if kept else like[:0]


@mlx_funcify.register(UnrolledScan)
def mlx_unrolled_scan(op: UnrolledScan, **kwargs: Any) -> Callable:
    info = op.info
    iterate = mlx_funcify(op.fgraph, **kwargs)
    if info.as_while:
        iterate = mx.compile(iterate)
    reads, writes = info.normalized_mit_mot_in_slices, info.normalized_mit_mot_out_slices

    def run(*given: Any) -> Any:
        inputs = list(given)
        steps = _length(op, inputs[0])
        sequences, others = op.outer_seqs(inputs), op.outer_non_seqs(inputs)
        buffers = [list(buffer) for buffer in op.outer_mitmot(inputs)]
        recurrent = [*op.outer_mitsot(inputs), *op.outer_sitsot(inputs)]
        taps = [*info.mit_sot_in_slices, *((-1,) for _ in range(info.n_sit_sot))]
        # A trace begins with what came before the loop, as far back as the taps reach.
        begun = zip(recurrent, taps, strict=True)
        traces = [[buffer[i] for i in range(-min(back))] for buffer, back in begun]
        fresh: list[list[Any]] = [[] for _ in range(info.n_nit_sot)]
        states = list(op.outer_untraced_sit_sot(inputs))

        for t in range(steps):
            outputs = list(
                iterate(
                    *(sequence[t] for sequence in sequences),
                    *chain.from_iterable(
                        [b[t + tap] for tap in tap_list] for b, tap_list in zip(buffers, reads, strict=True)
                    ),
                    *chain.from_iterable(
                        [trace[len(trace) + tap] for tap in back]
                        for trace, back in zip(traces, taps, strict=True)
                    ),
                    *states,
                    *others,
                )
            )
            for buffer, values, tap_list in zip(
                buffers, op.inner_mitmot_outs_grouped(outputs), writes, strict=True
            ):
                for tap, value in zip(tap_list, values, strict=True):
                    buffer[t + tap] = value
            results = [*op.inner_mitsot_outs(outputs), *op.inner_sitsot_outs(outputs)]
            for trace, value in zip(traces, results, strict=True):
                trace.append(value)
            for trace, value in zip(fresh, op.inner_nitsot_outs(outputs), strict=True):
                trace.append(value)
            states = list(op.inner_untraced_sit_sot_outs(outputs))
            if info.as_while and outputs[-1].item():
                break

        results = [
            *(mx.stack(buffer) for buffer in buffers),
            *(_last(trace, buffer.shape[0], buffer) for trace, buffer in zip(traces, recurrent, strict=True)),
            *(
                _last(trace, int(room), mx.zeros((0,)))
                for trace, room in zip(fresh, op.outer_nitsot(inputs), strict=True)
            ),
            *states,
        ]
        return results[0] if len(results) == 1 else results

    return run
