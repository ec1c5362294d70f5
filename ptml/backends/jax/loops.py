"""JAX kernel of loops that end when their condition holds: ``jax.lax.while_loop``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from pytensor.link.jax.dispatch import jax_funcify

from ptml.backends.loops import EndingScan


@jax_funcify.register(EndingScan)
def jax_ending_scan(op: EndingScan, **kwargs: Any) -> Callable:
    iterate = jax_funcify(op.fgraph, **kwargs)

    def run(*given: Any) -> Any:
        inputs = list(given)
        steps, sequences, others = inputs[0], op.outer_seqs(inputs), op.outer_non_seqs(inputs)

        def goes_on(carry: Any) -> Any:
            done, ended, _ = carry
            return (done < steps) & ~ended

        def go_on(carry: Any) -> Any:
            done, _, states = carry
            outputs = list(iterate(*(sequence[done] for sequence in sequences), *states, *others))
            new = op.inner_untraced_sit_sot_outs(outputs)
            kept = [jnp.asarray(value, state.dtype) for value, state in zip(new, states, strict=True)]
            return done + 1, jnp.asarray(outputs[-1], bool).reshape(()), kept

        start = [jnp.asarray(state) for state in op.outer_untraced_sit_sot(inputs)]
        _, _, states = jax.lax.while_loop(goes_on, go_on, (0, jnp.asarray(False), start))
        return states[0] if len(states) == 1 else states

    return run
