"""The plan against the Python linker on graphs that nobody thought of."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pytensor.compile.mode import Mode
from pytensor.conditional.op import ifelse

from ptml.backends.numba.plan import PLAN

REFERENCE = Mode(linker="py", optimizer="fast_compile")
ROWS, COLUMNS = 3, 4


def _square(x, y):
    return pt.tanh(x @ y.T) @ y


def _loop(x, y):
    return pytensor.scan(
        lambda row, total, y: pt.tanh(total + row) * y, [x], [x[0]], [y[1]], return_updates=False
    )


def _column(x):
    """The first column, in an order that small differences do not change."""
    return pt.argsort(pt.floor(x[:, 0] * 1.3 + 0.1234), stable=True)


#: What jumps, jumps away from zero and from equal numbers, where the last digit would decide.
SLOPE = np.array([0.0, 0.37, -0.21, 0.58])

#: Each makes a matrix of the same size of one or two others.
STEPS = [
    lambda x, y: x + y,
    lambda x, y: x * y - 1,
    lambda x, y: pt.maximum(x, y),
    lambda x, y: x / (1 + y * y),
    lambda x, y: pt.switch(x > 0.1234, x, 0.5 * y),
    lambda x, y: pt.tanh(x),
    lambda x, y: pt.exp(-(x**2)),
    lambda x, y: pt.sigmoid(x) * x,
    lambda x, y: x - x.mean(0),
    lambda x, y: x - x.max(1, keepdims=True) + y.sum(),
    lambda x, y: x / (1 + abs(x).sum(1, keepdims=True)),
    lambda x, y: x + y.var(0),
    lambda x, y: x[::-1],
    lambda x, y: x[:, ::-1] + x[0],
    lambda x, y: x.T.reshape((ROWS, COLUMNS)),
    lambda x, y: x.ravel()[::-1].reshape(x.shape),
    lambda x, y: pt.concatenate([x[1:], y[:1]]),
    lambda x, y: pt.concatenate([x[:, :2], y[:, 2:]], axis=1),
    lambda x, y: pt.set_subtensor(x[1:, 0], 0.25),
    lambda x, y: pt.inc_subtensor(x[::2], y[1]),
    lambda x, y: pt.stack([x[0], y[1], x[2]]),
    lambda x, y: _square(x, y),
    lambda x, y: pt.tanh(y @ x.T) @ x,
    lambda x, y: pt.cast(pt.cast(x, "float32") * 2, "float64"),
    lambda x, y: pt.cast(pt.floor(x + 0.1234), "int64") + y,
    lambda x, y: x * ((y + SLOPE).argmax(1)[:, None] + 1),
    lambda x, y: pt.sort(x, axis=1) + y,
    lambda x, y: pt.cumsum(x, axis=0) * 0.5,
    lambda x, y: pt.alloc(x[0], ROWS, COLUMNS) + y,
    lambda x, y: x[pt.as_tensor([2, 0, 1])],
    lambda x, y: pt.ones_like(x) * x.sum(),
    lambda x, y: x[_column(y)] + y,
    lambda x, y: pt.inc_subtensor(x[_column(y) // 2], y),
    lambda x, y: pt.set_subtensor(x[:, _column(y)], 0.5 * x[:, :ROWS]),
    lambda x, y: x[pt.arange(ROWS), _column(x)][:, None] * y,
    lambda x, y: pt.set_subtensor(x[y > 0.1234], 0.75),
    lambda x, y: x + y[_column(y)[0]],
    lambda x, y: pt.cumprod(pt.tanh(x), axis=1) + y,
    lambda x, y: pt.repeat(x[:2], [2, 1], axis=0) - y,
    lambda x, y: ifelse(x.sum() > 0.1234, x, y),
    lambda x, y: x + pt.diagonal(y)[:, None],
    lambda x, y: pt.stack([x, y]).mean(0) + (x[None] @ y.T[None] @ y[None])[0] * 0.1,
    lambda x, y: _loop(x, y),
    lambda x, y: _loop(y, x)[-1] + x,
]

numbers = st.integers(0, 10**6)


@settings(max_examples=40, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    steps=st.lists(st.tuples(st.integers(0, len(STEPS) - 1), numbers, numbers), min_size=2, max_size=12),
    results=st.lists(numbers, min_size=1, max_size=3),
    updates=st.tuples(numbers, numbers),
    gradient=st.booleans(),
)
def test_a_random_graph_gives_the_same_on_both(steps, results, updates, gradient):
    rng = np.random.default_rng(len(steps))
    x = pt.matrix("x", dtype="float64")
    first = {name: rng.normal(size=(ROWS, COLUMNS)) for name in "wv"}
    cells = {name: pytensor.shared(value, name=name) for name, value in first.items()}
    made = [x, *cells.values()]
    for which, left, right in steps:
        # Close to what was made last, so that graphs are deep as well as wide.
        made.append(STEPS[which](made[-1 - left % min(3, len(made))], made[right % len(made)]))
    outputs = [made[k % len(made)] for k in results]
    if gradient:
        outputs.append(pt.grad(pt.tanh(made[-1]).sum(), x, disconnected_inputs="ignore"))
    new = {cell: made[k % len(made)] for cell, k in zip(cells.values(), updates, strict=True)}
    inputs = [rng.normal(size=(ROWS, COLUMNS)) for _ in range(2)]
    inputs.append(np.asfortranarray(inputs[0]))
    seen = []
    for mode in (PLAN, REFERENCE):
        for name, cell in cells.items():
            cell.set_value(first[name])
        f = pytensor.function([x], outputs, updates=new, mode=mode, on_unused_input="ignore")
        kept = [f(value) for value in inputs]
        seen.append(
            [*(result for call in kept for result in call), *(cell.get_value() for cell in cells.values())]
        )
    for have, want in zip(*seen, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-8, atol=1e-10)
