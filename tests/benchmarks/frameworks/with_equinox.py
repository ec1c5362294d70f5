"""The workloads in Equinox and optax, the way its documentation trains: ``eqx.filter_jit`` over modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.benchmarks.frameworks.equinox_networks import network
from tests.benchmarks.workloads import LEAF, LEARNING_RATE, Dense, Workload


class Training:
    compile_seconds = None

    def __init__(self, workload: Workload, variant: str) -> None:
        features, labels = workload.data()
        self.data = features, labels.astype("int32")
        draws = isinstance(workload, Dense) and workload.dropout > 0

        def apply(net: eqx.Module, state: Any, x: Any, keys: Any) -> Any:
            mapped = jax.vmap(
                net, axis_name="batch", in_axes=(0, None, None if keys is None else 0), out_axes=(0, None)
            )
            return mapped(x, state, keys)

        def loss_of(net: eqx.Module, state: Any, x: Any, y: Any, key: Any) -> Any:
            keys = jax.random.split(key, x.shape[0]) if draws else None
            logits, state = apply(net, state, x, keys)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), state

        optimizer = optax.adam(LEARNING_RATE)

        def step(carried: Any, x: Any, y: Any) -> Any:
            net, state, moments, key = carried
            key, used = jax.random.split(key)
            (loss, state), gradients = eqx.filter_value_and_grad(loss_of, has_aux=True)(
                net, state, x, y, used
            )
            steps, moments = optimizer.update(gradients, moments, eqx.filter(net, eqx.is_inexact_array))
            return (eqx.apply_updates(net, steps), state, moments, key), loss

        # Data come as numpy arrays, so donating them too costs nothing.
        self._step = eqx.filter_jit(step, donate="all")
        self._predict = eqx.filter_jit(lambda net, state, x: apply(net, state, x, None)[0])
        net, state = eqx.nn.make_with_state(network)(workload)
        self.carried = (net, state, optimizer.init(eqx.filter(net, eqx.is_inexact_array)), jax.random.key(0))

    def step(self) -> Any:
        self.carried, loss = self._step(self.carried, *self.data)
        return loss

    def predictor(self) -> Callable[[], Any]:
        trained: Any = None
        net: Any = None

        def predict() -> Any:
            nonlocal trained, net
            if trained is not self.carried:  # made anew after training alone, as a user would
                trained, net = self.carried, eqx.nn.inference_mode(self.carried[0])
            return self._predict(net, self.carried[1], self.data[0])

        return predict

    def wait(self, result: Any) -> np.ndarray:
        jax.block_until_ready((result, eqx.filter(self.carried[0], eqx.is_array)))
        return np.asarray(result)


class Leaves:
    def __init__(self, count: int, variant: str) -> None:
        self.leaves = [jnp.zeros(LEAF) for _ in range(count)]
        self._update = eqx.filter_jit(lambda leaves, x: ([a + x for a in leaves], x.sum()), donate="all")
        self.value = np.ones(LEAF, "float32")
        self.calls = {"call": self._call}

    def _call(self) -> Any:
        self.leaves, result = self._update(self.leaves, self.value)
        return result

    def wait(self, result: Any) -> np.ndarray:
        jax.block_until_ready((result, self.leaves))
        return np.asarray(result)
