"""The workloads in ptml; the variant is the backend."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

import ptml
from ptml.initializers import Constant
from ptml.layers import Input
from ptml.loss import CrossEntropy, supervised_loss
from ptml.optim import (
    adadelta,
    adafactor,
    adagrad,
    adam,
    adamax,
    adamw,
    compile_train,
    lamb,
    lion,
    muon,
    nadam,
    radam,
    rmsprop,
    rprop,
    sgd,
    take_step,
)
from ptml_state import Role, Slot
from tests.benchmarks.frameworks.ptml_networks import network
from tests.benchmarks.workloads import LEAF, LEARNING_RATE, SIZES, Workload

ptml.set_threads(int(os.environ["OMP_NUM_THREADS"]))

RULES = {
    "sgd": sgd(LEARNING_RATE),
    "momentum": sgd(LEARNING_RATE, momentum=0.9),
    "adam": adam(LEARNING_RATE),
    "adamw": adamw(LEARNING_RATE),
    "nadam": nadam(LEARNING_RATE),
    "adamax": adamax(LEARNING_RATE),
    "rmsprop": rmsprop(LEARNING_RATE),
    "rmsprop-centered": rmsprop(LEARNING_RATE, centered=True),
    "rprop": rprop(LEARNING_RATE),
    "adagrad": adagrad(LEARNING_RATE),
    "adadelta": adadelta(LEARNING_RATE),
    "lion": lion(LEARNING_RATE),
    "radam": radam(LEARNING_RATE),
    "amsgrad": adam(LEARNING_RATE, amsgrad=True),
    "lamb": lamb(LEARNING_RATE),
    "muon": muon(LEARNING_RATE),
    "adafactor": adafactor(LEARNING_RATE),
}


class Training:
    def __init__(self, workload: Workload, variant: str) -> None:
        self.data = workload.data()
        self.backend = variant
        net, X, first = network(workload)
        self.logits = net(X)
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

    def report(self) -> dict[str, Any]:
        """Give what the program holds in memory."""
        return {"memory": attrs.asdict(self.program.memory())}

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


class Updates:
    """Parameters and gradients are both leaves, as torch has them: a call takes nothing."""

    def __init__(self, rule: str, size: str, variant: str) -> None:
        count, shape = SIZES[size]
        rng = np.random.default_rng(0)

        def leaf(name: str, role: Role) -> Any:
            return Slot(name, role, "float32", shape, Constant(rng.standard_normal(shape, "float32"))).handle

        self.parameters = [leaf(f"p{k}", Role.PARAMETER) for k in range(count)]
        gradients = [leaf(f"g{k}", Role.STATISTIC) for k in range(count)]
        steps = take_step(RULES[rule], gradients, self.parameters)
        self.program = ptml.function([], [], updates=steps, seed=0, backend=variant)

    def step(self) -> Any:
        return self.program()

    def first(self) -> np.ndarray:
        """Give the first parameter as it is now."""
        return np.asarray(self.program.state["p0"])

    def report(self) -> dict[str, Any]:
        """Give the number of kernel calls, where there is a plan."""
        tables = getattr(self.program.function.vm, "tables", {})
        return {"kernels": sum(table.n_kernels for table in tables.values()) or None}

    @staticmethod
    def wait(result: Any) -> Any:
        return result
