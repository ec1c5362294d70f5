"""What these tests share: a graph run by a plan and by PyTensor's Python linker, compared."""

from __future__ import annotations

import numpy as np
import pytensor
import pytest
from pytensor.compile.mode import Mode

from ptml.backends.numba.plan import PLAN

REFERENCE = Mode(linker="py", optimizer="fast_compile")


@pytest.fixture(autouse=True)
def no_compiler():
    """Loops and nested graphs of the Python linker would wait for C compilers, too."""
    with pytensor.config.change_flags(cxx=""):
        yield


def _compare(inputs, outputs, *calls, rtol=1e-10, atol=1e-12, kernels=True):
    planned, reference = (
        pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore") for mode in (PLAN, REFERENCE)
    )
    for values in calls:
        before = [np.copy(value) for value in values]
        # The second call runs the table that the first one planned.
        for have, want in (
            pair for _ in range(2) for pair in zip(planned(*values), reference(*values), strict=True)
        ):
            assert have.dtype == want.dtype
            assert have.shape == want.shape
            np.testing.assert_allclose(have, want, rtol=rtol, atol=atol)
        for value, old in zip(values, before, strict=True):
            np.testing.assert_array_equal(value, old)
    assert planned.vm.has_python_steps is not kernels
    return planned


@pytest.fixture
def same_on_both():
    """Compare all results of a graph for each of several inputs, and say whether it ran without Python."""
    return _compare


@pytest.fixture
def fails_alike():
    """Check that both raise an error of one class, and that a state that is updated stays as it was."""

    def check(inputs, output, good, bad, match=None):
        errors = []
        for mode in (PLAN, REFERENCE):
            cell = pytensor.shared(np.zeros(2))
            f = pytensor.function(
                inputs, output, updates={cell: cell + 1}, mode=mode, on_unused_input="ignore"
            )
            if good is not None:
                f(*good)
            before = cell.get_value()
            with pytest.raises(Exception, match=match) as caught:
                f(*bad)
            errors.append(caught.type)
            if mode is PLAN:
                np.testing.assert_array_equal(cell.get_value(), before)
                if good is not None:
                    f(*good)
                    np.testing.assert_array_equal(cell.get_value(), before + 1)
        assert errors[0] is errors[1]

    return check
