"""The workloads in JAX and optax alone: functions of arrays under ``jax.jit``, with donated state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.benchmarks.frameworks.jax_networks import apply, start
from tests.benchmarks.workloads import LEAF, LEARNING_RATE, SIZES, Workload

RULES = {
    "sgd": optax.sgd(LEARNING_RATE),
    "momentum": optax.sgd(LEARNING_RATE, 0.9),
    "adam": optax.adam(LEARNING_RATE),
    "adamw": optax.adamw(LEARNING_RATE, weight_decay=0.01),
    "nadam": optax.nadam(LEARNING_RATE),
    "adamax": optax.adamax(LEARNING_RATE),
    "rmsprop": optax.rmsprop(LEARNING_RATE, eps_in_sqrt=False),
    "rmsprop-centered": optax.rmsprop(LEARNING_RATE, eps_in_sqrt=False, centered=True),
    "rprop": optax.rprop(LEARNING_RATE),
    "adagrad": optax.adagrad(LEARNING_RATE, 0.0, 1e-8),
    "adadelta": optax.adadelta(LEARNING_RATE),
    "lion": optax.lion(LEARNING_RATE, weight_decay=0.0),
    "radam": optax.radam(LEARNING_RATE),
    "amsgrad": optax.amsgrad(LEARNING_RATE),
    "lamb": optax.lamb(LEARNING_RATE),
    "muon": optax.contrib.muon(LEARNING_RATE),
    "adafactor": optax.adafactor(LEARNING_RATE),
}


class Training:
    compile_seconds = None

    def __init__(self, workload: Workload, variant: str) -> None:
        features, labels = workload.data()
        self.data = features, labels.astype("int32")
        optimizer = optax.adam(LEARNING_RATE)
        parameters, statistics = start(workload)

        def loss_of(parameters: Any, statistics: Any, x: Any, y: Any, key: Any) -> Any:
            logits, moved = apply(workload, parameters, statistics, x, key)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), moved

        def step(state: Any, x: Any, y: Any) -> Any:
            parameters, statistics, moments, key = state
            key, used = jax.random.split(key)
            (loss, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(
                parameters, statistics, x, y, used
            )
            steps, moments = optimizer.update(gradients, moments, parameters)
            return (optax.apply_updates(parameters, steps), statistics, moments, key), loss

        self._step = jax.jit(step, donate_argnums=0)
        self._predict = jax.jit(lambda p, s, x: apply(workload, p, s, x, None)[0])
        self.state = (parameters, statistics, optimizer.init(parameters), jax.random.key(0))

    def step(self) -> Any:
        self.state, loss = self._step(self.state, *self.data)
        return loss

    def predictor(self) -> Callable[[], Any]:
        return lambda: self._predict(self.state[0], self.state[1], self.data[0])

    def wait(self, result: Any) -> np.ndarray:
        jax.block_until_ready((result, self.state[:3]))
        return np.asarray(result)


class Leaves:
    def __init__(self, count: int, variant: str) -> None:
        self.leaves = [jnp.zeros(LEAF) for _ in range(count)]
        self._update = jax.jit(lambda leaves, x: ([a + x for a in leaves], x.sum()), donate_argnums=0)
        self.value = np.ones(LEAF, "float32")
        self.calls = {"call": self._call}

    def _call(self) -> Any:
        self.leaves, result = self._update(self.leaves, self.value)
        return result

    def wait(self, result: Any) -> np.ndarray:
        jax.block_until_ready((result, self.leaves))
        return np.asarray(result)


class Updates:
    def __init__(self, rule: str, size: str, variant: str) -> None:
        count, shape = SIZES[size]
        rng = np.random.default_rng(0)
        arrays = [jnp.asarray(rng.standard_normal(shape, "float32")) for _ in range(2 * count)]
        parameters, self.gradients = arrays[:count], arrays[count:]
        optimizer = RULES[rule]

        def step(carried: Any, gradients: Any) -> Any:
            parameters, state = carried
            steps, state = optimizer.update(gradients, state, parameters)
            return optax.apply_updates(parameters, steps), state

        self._step = jax.jit(step, donate_argnums=0)
        # Some rules keep zeros of one array for two uses, which cannot both be donated.
        self.carried = jax.tree.map(jnp.copy, (parameters, optimizer.init(parameters)))

    def step(self) -> Any:
        self.carried = self._step(self.carried, self.gradients)

    def first(self) -> np.ndarray:
        """Give the first parameter as it is now."""
        return np.array(self.carried[0][0])

    def wait(self, result: Any) -> Any:
        return jax.block_until_ready(self.carried[0])
