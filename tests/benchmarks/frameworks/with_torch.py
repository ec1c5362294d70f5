"""The workloads in PyTorch, eager, with its fused Adam."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.benchmarks.frameworks.torch_networks import network
from tests.benchmarks.workloads import LEAF, LEARNING_RATE, SIZES, Workload

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

#: Fused where PyTorch has that, else over lists of arrays, which is faster than one by one.
RULES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, fused=True),
    "momentum": partial(torch.optim.SGD, momentum=0.9, fused=True),
    "adam": partial(torch.optim.Adam, fused=True),
    "adamw": partial(torch.optim.AdamW, fused=True),
    "nadam": partial(torch.optim.NAdam, foreach=True),
    "adamax": partial(torch.optim.Adamax, foreach=True),
    "rmsprop": partial(torch.optim.RMSprop, alpha=0.9, foreach=True),
    "rmsprop-centered": partial(torch.optim.RMSprop, alpha=0.9, centered=True, foreach=True),
    "rprop": partial(torch.optim.Rprop, foreach=True),
    "adagrad": partial(torch.optim.Adagrad, eps=1e-8, fused=True),
    "adadelta": partial(torch.optim.Adadelta, foreach=True),
    "radam": partial(torch.optim.RAdam, foreach=True),
    "amsgrad": partial(torch.optim.Adam, amsgrad=True, fused=True),
    "muon": partial(torch.optim.Muon, weight_decay=0.0),
    "adafactor": partial(torch.optim.Adafactor, foreach=True),
}


class Training:
    compile_seconds = None

    def __init__(self, workload: Workload, variant: str) -> None:
        self.data = tuple(map(torch.from_numpy, workload.data()))
        self.net = network(workload)
        trained = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.Adam(trained, lr=LEARNING_RATE, fused=True)

    def step(self) -> Any:
        if not self.net.training:
            self.net.train()
        features, labels = self.data
        self.optimizer.zero_grad()
        logits = self.net(features)
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        loss.backward()
        self.optimizer.step()
        return loss

    def predictor(self) -> Callable[[], Any]:
        def predict() -> Any:
            if self.net.training:
                self.net.eval()
            with torch.inference_mode():
                return self.net(self.data[0])

        return predict

    @staticmethod
    def wait(result: torch.Tensor) -> np.ndarray:
        return result.detach().numpy()


class Leaves:
    """PyTorch updates leaves one by one or in a fused optimizer; the latter is what training does."""

    def __init__(self, count: int, variant: str) -> None:
        leaves = [nn.Parameter(torch.zeros(LEAF)) for _ in range(count)]
        for leaf in leaves:
            leaf.grad = torch.ones(LEAF)
        optimizer = torch.optim.Adam(leaves, lr=LEARNING_RATE, fused=True)
        value = torch.ones(LEAF)

        def call() -> Any:
            optimizer.step()
            return value.sum()

        self.calls = {"call": call}

    @staticmethod
    def wait(result: torch.Tensor) -> np.ndarray:
        return result.numpy()


class Updates:
    def __init__(self, rule: str, size: str, variant: str) -> None:
        count, shape = SIZES[size]
        rng = np.random.default_rng(0)
        arrays = [torch.from_numpy(rng.standard_normal(shape, "float32")) for _ in range(2 * count)]
        self.parameters = [nn.Parameter(array) for array in arrays[:count]]
        for parameter, gradient in zip(self.parameters, arrays[count:], strict=True):
            parameter.grad = gradient
        self.step = RULES[rule](self.parameters, lr=LEARNING_RATE).step

    def first(self) -> np.ndarray:
        """Give the first parameter as it is now."""
        return self.parameters[0].detach().numpy().copy()

    @staticmethod
    def wait(result: Any) -> Any:
        return result
