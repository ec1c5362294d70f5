"""The workloads in ptml; the variant is the backend."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ptml
from ptml.activations import ReLU
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import CrossEntropy, supervised_loss
from ptml.optim import adam, compile_train
from ptml_state import Role, Slot
from tests.benchmarks.workloads import LEAF, LEARNING_RATE, Workload


class Training:
    def __init__(self, workload: Workload, variant: str) -> None:
        self.data = workload.data()
        self.backend = variant
        layers: list[Any] = []
        for k in workload.layers:
            layers.append(Linear(f"fc{k}", n_in=workload.widths[k], n_out=workload.widths[k + 1]))
            if workload.is_hidden(k):
                if workload.norm:
                    layers.append(BatchNorm(f"bn{k}", n_in=workload.widths[k + 1]))
                layers.append(ReLU())
                if workload.dropout:
                    layers.append(Dropout(f"drop{k}", p=workload.dropout))
        net = Sequential(*layers)
        first = {
            f"fc{k}/{leaf}": value
            for k, pair in enumerate(workload.weights())
            for leaf, value in zip("Wb", pair, strict=True)
        }
        self.logits = net(Input("X", shape=(None, workload.widths[0])))
        loss, _ = supervised_loss(self.logits, CrossEntropy(expect_onehot_labels=False, expect_logits=True))
        state = ptml.init(net, seed=0).replace(first)
        start = time.perf_counter()
        self.program = compile_train(loss, adam(LEARNING_RATE), state=state, backend=variant)
        self.compile_seconds = time.perf_counter() - start

    def step(self) -> Any:
        return self.program(*self.data)

    def predictor(self) -> Callable[[], Any]:
        predict = ptml.compile_predict(self.logits, state=self.program, backend=self.backend)
        features = self.data[0]
        return lambda: predict(features)

    @staticmethod
    def wait(result: np.ndarray) -> np.ndarray:
        return result


class Leaves:
    def __init__(self, count: int, variant: str) -> None:
        x = Input("x", shape=LEAF)
        slots = [
            Slot(
                f"leaf{k}", Role.PARAMETER, "float32", LEAF, lambda rng, shape, dtype: np.zeros(shape, dtype)
            )
            for k in range(count)
        ]
        updates = {slot.handle: slot.handle + x for slot in slots}
        self.program = ptml.function([x], x.sum(), updates=updates, seed=0, backend=variant)
        value = np.ones(LEAF, "float32")
        function = self.program.function

        def bare() -> Any:
            with self.program.backend.context():
                return np.asarray(function(value))

        #: By what is timed; "call" is what a user writes.
        self.calls = {"call": lambda: self.program(value), "PyTensor's function alone": bare}

    @staticmethod
    def wait(result: np.ndarray) -> np.ndarray:
        return result
