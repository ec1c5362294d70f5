"""Holds at compile: marks are resolved, questions answered, and each hold is on what it covers."""

from __future__ import annotations

import pickle

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.compile.thread import thread
from ptml.holds import Held, Hold, Written, marked
from ptml.initializers import Constant
from ptml_state import Role, Slot

PYTHON = {"mode": Mode(linker="py", optimizer="fast_compile")}


def slot(name, role=Role.OPTIMIZER, dtype="float64", value=1.0, owner=None):
    return Slot(name, role, dtype, (), Constant(value), owner=owner).handle


@pytest.fixture
def when():
    return pt.scalar("when", dtype="bool")


def compiled(inputs, updates, outputs=()):
    return ptml.function(inputs, list(outputs), updates=updates, seed=0, **PYTHON)


def test_a_partial_hold_is_on_what_it_marks_and_the_clocks_it_names(when):
    hold = Hold(when)
    a, b = slot("a"), slot("b")
    named, other = (slot(name, Role.CLOCK, "int64", 0, owner=hold) for name in ("named", "other"))
    hold.clocks[named.slot] = None
    program = compiled([when], {a: marked(a, a + named, [hold]), b: b + other})
    program(True)
    assert dict(program.state) == {"a": 1.0, "b": 1.0, "named": 0, "other": 1}
    program(False)
    assert dict(program.state) == {"a": 1.0, "b": 2.0, "named": 1, "other": 2}


def test_a_whole_hold_is_on_all_but_keys_counts_and_clocks_without_an_owner(when):
    count = slot("count")
    hold = Hold(when, whole=True, spared=(count.slot,))
    a, b = slot("a"), slot("b")
    owned, free = slot("owned", Role.CLOCK, "int64", 0, owner=hold), slot("free", Role.CLOCK, "int64", 0)
    shared = pytensor.shared(0.0)
    updates = {a: marked(a, a + 1.0, [hold]), b: b + owned + free, count: count + 1.0, shared: shared + 1.0}
    program = compiled([when], updates)
    program(True)
    assert dict(program.state) == {"a": 1.0, "b": 1.0, "count": 2.0, "owned": 0, "free": 1}
    assert shared.get_value() == 1.0
    program(False)
    assert dict(program.state) == {"a": 2.0, "b": 2.0, "count": 3.0, "owned": 1, "free": 2}


def test_a_question_is_asked_of_what_is_written_and_not_of_what_depends_on_its_answer():
    seen = {}

    def ask(values):
        seen.update(values)
        return pt.gt(values[a.slot], 2.0)

    root = Written(ask)
    a, count, copy = slot("a"), slot("count"), slot("copy")
    hold = Hold(root, whole=True, spared=(count.slot,))
    new = marked(a, a + 1.0, [hold])
    program = compiled([], {a: new, copy: new, count: count + pt.cast(root, "float64")}, [root, new])
    assert set(seen) == {a.slot}
    assert [float(x) for x in program()] == [0.0, 2.0]
    assert [float(x) for x in program()] == [1.0, 2.0]
    assert dict(program.state) == {"a": 2.0, "count": 2.0, "copy": 2.0}


def test_holds_are_applied_in_the_order_in_which_they_were_made(when):
    a = slot("a")
    inner = Hold(when)
    outer = Hold(Written(lambda values: pt.gt(values[a.slot], 1.5)), whole=True)
    program = compiled([when], {a: marked(a, a + 1.0, [inner, outer])}, [outer.when])
    # What the inner hold keeps back is not there for the outer one to see.
    assert [bool(program(held)[0]) for held in (True, False)] == [False, True]


def test_a_question_without_a_hold_is_answered_too():
    a = slot("a")
    root = Written(lambda values: pt.gt(values[a.slot], 1.5) if values else pt.constant(np.bool_(False)))
    assert bool(compiled([], {a: a + 1.0}, [root])()[0])
    assert not bool(compiled([], {}, [root])()[0])


def test_nothing_of_it_is_left_in_a_threaded_graph(when):
    a = slot("a")
    hold = Hold(when | Written(lambda values: pt.constant(np.bool_(False))), whole=True)
    threaded = thread([], updates={a: marked(a, a + 1.0, [hold])})
    assert set(threaded.roots) == {when, a}
    assert not [v for v in threaded.everything if v.owner is not None and isinstance(v.owner.op, Held)]


def test_a_mark_means_the_same_to_pytensor_alone(when):
    x = pt.dscalar("x")
    held = Held(Hold(when))(x + 1.0, x, when)
    function = pytensor.function([x, when], held, mode=PYTHON["mode"])
    assert (function(1.0, True), function(1.0, False)) == (1.0, 2.0)
    assert str(held.owner.op) == "Held"
    assert repr(Hold(when)) == "<Hold on what is behind a window>"


def test_an_amount_that_is_held_back_leaves_every_bit(when):
    x = pt.constant(np.array([0.0, -0.0, np.inf, np.nan, 1e-300]))
    kept = x + Hold(when).or_nothing(pt.ones(5))
    value = pytensor.function([when], kept, mode=PYTHON["mode"])(True)
    assert value.tobytes() == x.data.tobytes()


def test_marks_and_questions_are_copied_and_pickled(when):
    a = slot("a")
    hold = Hold(when | Written(_never), whole=True)
    again, new = pickle.loads(pickle.dumps([when, marked(a, a + 1.0, [hold])]))
    program = compiled([again], {a: new})
    program(True)
    program(False)
    assert program.state["a"] == 2.0


def _never(values):
    return pt.constant(np.bool_(False))
