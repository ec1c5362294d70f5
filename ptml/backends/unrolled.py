"""How Python runs a loop of PyTensor's, over iterations that a backend computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from ptml.backends.loops import UnrolledScan

__all__ = ["unrolled"]

Arrays = Callable[[list[Any]], Any]


def _same(array: Any) -> Any:
    return array


def unrolled(
    op: UnrolledScan,
    iterate: Callable[..., Sequence[Any]],
    *,
    length: Callable[[Any], int],
    stack: Arrays,
    one: Callable[[Any], Any],
) -> Callable[..., Any]:
    """Give a function of a backend's arrays that runs a loop.

    Parameters
    ----------
    op : UnrolledScan
    iterate : callable
        Computes one iteration.
    length : callable
        From the number of steps as it is given to a number.
    stack : callable
        Stacks arrays along a new first axis.
    one : callable
        Gives zeros that are shaped as one element along an array's first axis.
    """
    info = op.info
    reads, writes = info.normalized_mit_mot_in_slices, info.normalized_mit_mot_out_slices
    taps = [*info.mit_sot_in_slices, *((-1,) for _ in range(info.n_sit_sot))]

    def last(items: list[Any], room: int, like: Callable[[], Any]) -> Any:
        """Stack the last of a trace, as many as its buffer has room for."""
        kept = items[max(len(items) - room, 0) :]
        return stack(kept) if kept else like()[:0]

    def run(*given: Any) -> Any:
        inputs = list(given)
        steps = length(inputs[0])
        sequences, others = op.outer_seqs(inputs), op.outer_non_seqs(inputs)
        buffers = [list(buffer) for buffer in op.outer_mitmot(inputs)]
        recurrent = [*op.outer_mitsot(inputs), *op.outer_sitsot(inputs)]
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

        def like_fresh(k: int) -> Any:
            """Give an array whose elements are shaped as those of a trace that no iteration gave any."""
            read = zip(op.outer_mitmot(inputs), reads, strict=True)
            before = zip(recurrent, taps, strict=True)
            outputs = iterate(
                *map(one, sequences),
                *chain.from_iterable([one(buffer)] * len(back) for buffer, back in chain(read, before)),
                *states,
                *others,
            )
            return op.inner_nitsot_outs(list(outputs))[k][None]

        results = [
            *map(stack, buffers),
            *(
                last(t, buffer.shape[0], partial(_same, buffer))
                for t, buffer in zip(traces, recurrent, strict=True)
            ),
            *(
                last(trace, int(room), partial(like_fresh, k))
                for k, (trace, room) in enumerate(zip(fresh, op.outer_nitsot(inputs), strict=True))
            ),
            *states,
        ]
        return results[0] if len(results) == 1 else results

    return run
