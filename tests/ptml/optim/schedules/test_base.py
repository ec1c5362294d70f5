"""Schedules as values that are looked at: rates, tables and plots, without compiling."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from ptml.optim import Schedule, constant_schedule, cosine_schedule, linear_schedule, scalar_state


@pytest.fixture
def nothing_compiles(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a function was compiled")

    monkeypatch.setattr("pytensor.compile.maker.FunctionMaker.__init__", refuse)
    monkeypatch.setattr("pytensor.link.c.basic.CLinker.make_thunk", refuse)


class Halving(Schedule):
    every: int

    def at(self, count):
        return 0.5 ** (count // self.every)


def test_a_schedule_of_the_users_is_a_value():
    assert Halving(every=2).values([0, 1, 2, 5]).tolist() == [1.0, 1.0, 0.5, 0.25]
    assert float(Halving(every=2)(5).eval()) == 0.25
    assert repr(Halving(every=2)) == "Halving(every=2)"


@pytest.mark.usefixtures("nothing_compiles")
def test_rates_are_given_in_the_shape_of_the_counts_and_nothing_is_compiled():
    schedule = linear_schedule(1.0, 4)
    assert schedule.values(1).shape == ()
    assert float(schedule.values(1)) == 0.75
    assert schedule.values([[0, 1], [2, 3]]).tolist() == [[1.0, 0.75], [0.5, 0.25]]
    assert schedule.values(range(3)).tolist() == [1.0, 0.75, 0.5]
    with pytensor.config.change_flags(floatX="float32"):
        assert schedule.values([0]).dtype == "float32"


@pytest.mark.usefixtures("nothing_compiles")
def test_a_schedule_that_ignores_its_count_has_a_rate_for_each():
    class Fixed(Schedule):
        def at(self, count):
            return 0.5

    rates = Fixed().values([0, 1, 2])
    assert rates.tolist() == [0.5, 0.5, 0.5]
    rates[0] = 1.0
    assert rates.tolist() == [1.0, 0.5, 0.5]


@pytest.mark.usefixtures("nothing_compiles")
def test_what_a_schedule_depends_on_is_given_as_inputs():
    X, n = pt.matrix("X"), pt.lscalar("n")
    schedule = linear_schedule(1.0, n // X.shape[0])
    assert schedule.values([5], {X: np.zeros((10, 2)), n: 100}).tolist() == [0.5]
    with pytest.raises(ValueError, match=r"LinearSchedule\(.*\) depends on .*X.*inputs=\{.*: value\}"):
        schedule.values([5], {n: 100})
    with pytest.raises(TypeError, match=r"inputs maps variables to values; got the key 'n'"):
        schedule.values([5], {"n": 100})


@pytest.mark.usefixtures("nothing_compiles")
def test_state_has_its_first_value_unless_another_is_given():
    peak = scalar_state("peak", 0.5)
    schedule = linear_schedule(peak, 4)
    assert schedule.values([0, 2]).tolist() == [0.5, 0.25]
    assert schedule.values([0, 2], {peak: 2.0}).tolist() == [2.0, 1.0]
    shared = pytensor.shared(np.float64(0.25), name="shared")
    assert constant_schedule(pt.as_tensor(shared)).values([3]).tolist() == [0.25]


@pytest.mark.usefixtures("nothing_compiles")
def test_a_table_has_a_line_for_each_count():
    table = cosine_schedule(0.3, 10).table([0, 5, 10, 1000])
    assert table.splitlines() == ["step  rate", "   0   0.3", "   5  0.15", "  10     0", "1000     0"]


def test_a_count_that_is_not_whole_is_refused():
    with pytest.raises(TypeError, match=r"LinearSchedule\(1\.0, 4\) is read at a whole number of steps"):
        linear_schedule(1.0, 4).values([0.5])


@pytest.mark.usefixtures("nothing_compiles")
def test_a_plot_draws_every_step_on_new_axes_or_those_given():
    from matplotlib import pyplot

    schedule = linear_schedule(1.0, 4)
    axes = schedule.plot(6)
    [line] = axes.lines
    assert line.get_xdata().tolist() == list(range(7))
    assert line.get_ydata().tolist() == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0]
    assert constant_schedule(0.1).plot(6, ax=axes) is axes
    assert len(axes.lines) == 2
    [long] = schedule.plot(10**9).lines
    counts = long.get_xdata()
    assert (counts[0], counts[-1], len(counts)) == (0, 10**9, 2001)
    pyplot.close("all")


@pytest.mark.parametrize("length", [0, -1, 2.5, True, "10"])
def test_a_plot_of_no_steps_is_refused(length):
    with pytest.raises(ValueError, match=r"a whole number of steps of at least 1; got total_steps="):
        linear_schedule(1.0, 4).plot(length)


def test_a_plot_without_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'ptml\[examples\]'"):
        linear_schedule(1.0, 4).plot(6)
