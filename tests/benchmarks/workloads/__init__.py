"""What is measured: the networks, their data and their first weights, the same for every framework.

Imports nothing but NumPy, since workers of any environment read it.
"""

from tests.benchmarks.workloads.base import LEARNING_RATE, Arrays, Workload
from tests.benchmarks.workloads.convolutional import Convolutional
from tests.benchmarks.workloads.dense import Dense
from tests.benchmarks.workloads.recurrent import Recurrent
from tests.benchmarks.workloads.table import GROWTH, LEAF, SIZES, WORKLOADS
from tests.benchmarks.workloads.transformer import Transformer

__all__ = [
    "GROWTH",
    "LEAF",
    "LEARNING_RATE",
    "SIZES",
    "WORKLOADS",
    "Arrays",
    "Convolutional",
    "Dense",
    "Recurrent",
    "Transformer",
    "Workload",
]
