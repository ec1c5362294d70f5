"""The workloads in pytensor-ml; the variant is what PyTensor compiles for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor_ml.loss import CrossEntropy
from pytensor_ml.model import Model
from pytensor_ml.optim import adam

from tests.benchmarks.frameworks.pytensor_ml_networks import network
from tests.benchmarks.workloads import LEARNING_RATE, Workload


class Training:
    def __init__(self, workload: Workload, variant: str) -> None:
        self.data = workload.data()
        # JAX wants to know shapes; numba takes any.
        batch = workload.batch if variant == "JAX" else None
        self.model = Model(network(workload, batch), compile_kwargs={"mode": variant})
        start = time.perf_counter()
        loss = CrossEntropy(expect_logits=True, expect_onehot_labels=False, reduction="mean")
        self.program = self.model.compile_train(adam(LEARNING_RATE), loss)
        self.compile_seconds = time.perf_counter() - start
        self.first = self.model.weights[0]

    def step(self) -> Any:
        return self.program(*self.data)

    def predictor(self) -> Callable[[], Any]:
        return lambda: self.model.predict(self.data[0])

    def wait(self, result: Any) -> np.ndarray:
        # JAX's arrays say when they are there; a program's results come together.
        held = self.first.get_value(borrow=True, return_internal_type=True)
        if hasattr(held, "block_until_ready"):
            held.block_until_ready()
        return np.asarray(result)
