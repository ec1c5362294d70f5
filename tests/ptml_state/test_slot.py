from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys

import attrs
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs

from ptml_state import Role, Slot, SlotVariable


def zeros(rng, shape, dtype):
    return np.zeros(shape, dtype)


@attrs.frozen(slots=False)
class Layer:
    name: str


def weights() -> Slot:
    return Slot("W", Role.PARAMETER, "float64", (3,), zeros, owner=Layer("fc1"), attribute="W")


def test_roles_join_into_selectors():
    assert repr(Role.PARAMETER & "fc1") == "Role.PARAMETER & where('fc1')"
    assert repr("fc1" | Role.CLOCK) == "Role.CLOCK | where('fc1')"
    assert repr(~Role.PARAMETER) == "~Role.PARAMETER"


def test_a_role_is_written_as_its_value():
    values = ["parameter", "statistic", "generator", "clock", "optimizer", "cache"]
    assert [str(role) for role in Role] == values
    assert repr(Role.PARAMETER) == "Role.PARAMETER"


def test_slots_are_compared_by_identity():
    owner = Layer("fc1")
    one, other = (Slot("W", Role.PARAMETER, "float32", (3,), zeros, owner=owner) for _ in range(2))
    assert one != other
    assert len({one, other}) == 2
    assert one.uid != other.uid
    assert one.ordinal < other.ordinal


def test_an_address_leads_through_the_owner_and_the_slot_that_is_accompanied():
    W = weights()
    moment = Slot("adam/first_moment", Role.OPTIMIZER, "float64", (3,), zeros, of=W)
    count = Slot("adam/step_count", Role.CLOCK, "int64", (), zeros)
    assert (W.address, moment.address, count.address) == (
        "fc1/W",
        "adam/first_moment/fc1/W",
        "adam/step_count",
    )


def test_a_slot_knows_its_type_and_size():
    slot = Slot("W", Role.PARAMETER, np.float32, [np.int64(4), 3], zeros)
    assert slot.dtype == "float32"
    assert slot.shape == (4, 3)
    assert slot.nbytes == 48
    assert slot.type == slot.handle.type == pt.TensorType("float32", (4, 3))
    assert repr(slot) == "Slot('W', Role.PARAMETER, float32[4,3])"


@pytest.mark.parametrize("shape", [(None, 3), (-1,), (2.0,), (True,)])
def test_a_shape_that_is_not_known_is_refused(shape):
    with pytest.raises(ValueError, match="tuple of whole numbers, all known and none negative"):
        Slot("W", Role.PARAMETER, "float32", shape, zeros)


@pytest.mark.parametrize("name", ["", "/W", "W/"])
def test_a_name_that_is_no_path_is_refused(name):
    with pytest.raises(ValueError, match="A slot's name is a path such as 'W'"):
        Slot(name, Role.PARAMETER, "float32", (), zeros)


def test_a_slot_has_one_handle_for_life():
    W = weights().handle
    assert isinstance(W, SlotVariable)
    assert W.slot.handle is W
    assert W.clone() is W
    assert copy.copy(W) is W
    assert copy.deepcopy(W) is W
    assert copy.deepcopy(W.slot) is W.slot
    assert copy.copy(W.slot) is W.slot


def test_cloning_a_graph_keeps_its_handles():
    W = weights().handle
    loss = (W**2).sum()
    cloned = clone_replace(loss, {})
    roots = [root for root in graph_inputs([cloned]) if not isinstance(root, Constant)]
    assert roots == [W]


def test_a_pickled_graph_gets_its_handle_back():
    W = weights().handle
    graph = pickle.loads(pickle.dumps((W**2).sum()))
    assert W in graph_inputs([graph])
    assert pickle.loads(pickle.dumps(W)) is W


def test_a_slot_that_is_gone_comes_back_with_its_identity():
    slot = weights()
    uid, text = slot.uid, pickle.dumps([slot.handle, slot.handle])
    del slot
    gc.collect()
    one, other = pickle.loads(text)
    assert one is other
    assert one.slot.uid == uid
    assert one.slot.address == "fc1/W"
    assert one.slot.owner.W is one


def test_a_slot_made_in_another_process_is_found_again_when_it_returns():
    slot = Slot("W", Role.PARAMETER, "float64", (3,), np.zeros)
    program = "import pickle, sys; sys.stdout.buffer.write(pickle.dumps(pickle.load(sys.stdin.buffer)))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        input=pickle.dumps(slot.handle),
        capture_output=True,
        check=True,
    )
    assert pickle.loads(done.stdout) is slot.handle


def test_a_gradient_goes_through_a_handle():
    W = weights().handle
    (gradient,) = pytensor.grad((W**3).sum(), [W])
    given = pt.dvector("given")
    values = clone_replace(gradient, {W: pt.specify_shape(given, (3,))}).eval({given: [1.0, 2.0, 3.0]})
    np.testing.assert_allclose(values, [3.0, 12.0, 27.0])


def test_a_handle_is_named_after_its_slot_for_good():
    W = weights().handle
    assert W.name == "fc1/W"
    assert str(W) == "fc1/W [slot: needs ptml.function]"
    assert repr(W) == "<fc1/W: float64[3]>"
    with pytest.raises(AttributeError, match=r"The handle of 'fc1/W' is named after its slot"):
        W.name = "other"


def test_plain_pytensor_function_names_the_slot_and_what_compiles_it():
    X = pt.dvector("X")
    with pytest.raises(pytensor.graph.utils.MissingInputError, match=r"fc1/W \[slot: needs ptml\.function\]"):
        pytensor.function([X], X + weights().handle, mode="FAST_COMPILE")
