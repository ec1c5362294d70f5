"""Loading into something: what fits, what is said where it does not, and each relaxation."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ptml
from ptml.activations import ReLU
from ptml.initializers import Ones, Zeros
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import SquaredError
from ptml.optim import adam, chain, compile_train, ema
from ptml_state import ArchiveError, Role, State, Store, load_report, load_state, save_state
from ptml_state.mapped import is_mapped


def network():
    return Sequential(
        Linear("fc1", n_in=3, n_out=4),
        BatchNorm("bn", n_in=4),
        ReLU(),
        Linear("fc2", n_in=4, n_out=2),
    )


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.safetensors"
    save_state(ptml.init(network(), seed=0), path)
    return path


@pytest.fixture
def step():
    X, y = Input("X", shape=(None, 3)), Input("y", shape=(None, 2))
    return compile_train(SquaredError()(y, network()(X)), adam(1e-3), inputs=[X, y], seed=1)


def test_what_fits_comes_back_in_the_order_that_is_wanted(saved):
    state = ptml.init(network(), seed=0)
    for like in (network(), state, Store(state), network()(Input("X", shape=(None, 3))), [network()]):
        assert load_state(saved, like=like) == state
        assert list(load_state(saved, like=like)) == list(state)
    turned = State({address: state[address] for address in reversed(list(state))}, state.roles)
    assert list(load_state(saved, like=turned)) == list(turned)
    assert not load_report(saved, like=state)


def test_leaves_take_up_the_slots_that_they_are_for(saved):
    net = network()
    state = load_state(saved, like=net)
    np.testing.assert_array_equal(state[net[0].W], ptml.init(net, seed=0)[net[0].W])
    assert [leaf.uid for leaf in state.leaves] == [handle.slot.uid for handle in ptml.slots(net)]


def test_one_message_has_all_that_differs(saved):
    like = ptml.init(network(), seed=0).drop("fc1/b").rename({"fc2/b": "fc2/bias"})
    like = like.replace({"fc1/W": np.zeros((3, 5))}, reshape=True).astype("float32", "fc2/W")
    with pytest.raises(ArchiveError) as error:
        load_state(saved, like=like)
    assert (
        str(error.value)
        == f"""\
{saved} does not fit what it is loaded into:
  missing     fc2/bias
  unexpected  fc1/b
  unexpected  fc2/b
  retyped     fc2/W     float64[4,2] → float32[4,2]
  reshaped    fc1/W     float64[3,4] → float64[3,5]
Where those are the same under other names, write rename={{old: new}}.
Take first values for what is missing with missing="init".
Leave out what there is no place for with unexpected="ignore".
Cast between floating-point dtypes with retyped="cast".
Load the rest with where=, and give those another value with state.replace({{...}})."""
    )
    report = load_report(saved, like=like)
    assert report
    assert (report.missing, report.unexpected) == (("fc2/bias",), ("fc1/b", "fc2/b"))
    assert report.refusals == ("missing", "unexpected", "retyped", "reshaped")
    assert "Refused." in repr(report)
    with pytest.raises(ArchiveError, match="does not fit"):
        report.state  # noqa: B018 asking for it is what fails


def test_missing_leaves_take_first_values_by_the_rule_of_init(saved):
    net = Sequential(network(), Linear("extra", n_in=2, n_out=2))
    with pytest.raises(ArchiveError, match=r"missing  extra/W\s+missing  extra/b"):
        load_state(saved, like=net)
    state = load_state(saved, like=net, missing="init", seed=5)
    np.testing.assert_array_equal(state["extra/W"], ptml.init(net, seed=5)["extra/W"])
    np.testing.assert_array_equal(state["fc1/W"], ptml.init(network(), seed=0)["fc1/W"])
    held = ptml.init(net, seed=8)
    np.testing.assert_array_equal(load_state(saved, like=held, missing="init")["extra/W"], held["extra/W"])
    report = load_report(saved, like=net, missing="init")
    assert repr(report) == "8 loaded, 2 missing\n  missing  extra/W\n  missing  extra/b"


def test_a_program_takes_parameters_and_draws_the_optimizers_state(saved, step):
    state = load_state(saved, like=step, missing="init")
    assert list(state) == list(step.state)
    np.testing.assert_array_equal(state["adam/first_moment/fc1/W"], np.zeros((3, 4)))
    assert state.roles["adam/step_count"] is Role.CLOCK
    step.store.load(state)
    np.testing.assert_array_equal(step.state["fc2/W"], ptml.init(network(), seed=0)["fc2/W"])


def test_a_copy_of_a_parameter_starts_at_the_value_that_is_loaded(saved):
    X, y = Input("X", shape=(None, 3)), Input("y", shape=(None, 2))
    rule = chain(adam(1e-3), ema(0.9))
    step = compile_train(SquaredError()(y, network()(X)), rule, inputs=[X, y], seed=1)
    state = load_state(saved, like=step, missing="init")
    (average,) = [a for a in state if a.endswith("fc1/W") and a.startswith("ema")]
    np.testing.assert_array_equal(state[average], state["fc1/W"])
    with pytest.raises(ArchiveError, match="is that of the parameter which it accompanies, and"):
        load_state(saved, like=step, missing="init", where=average)


def test_where_loads_some_leaves(saved, step):
    assert list(load_state(saved, where="fc2")) == ["fc2/W", "fc2/b"]
    assert list(load_state(saved, where=Linear)) == ["fc1/W", "fc1/b", "fc2/W", "fc2/b"]
    assert list(load_state(saved, like=step, where=Role.STATISTIC)) == ["bn/running_mean", "bn/running_var"]
    larger = Sequential(network(), Linear("extra", n_in=2, n_out=2))
    assert list(load_state(saved, like=larger, where="fc1")) == ["fc1/W", "fc1/b"]
    with pytest.raises(KeyError, match=r"'fc3' matches nothing in the file\. Did you mean 'fc"):
        load_state(saved, where="fc3")
    with pytest.raises(KeyError, match="'fc3' matches nothing in what is loaded into"):
        load_state(saved, like=step, where="fc3")


def test_renaming_takes_patterns_and_refuses_slips(saved):
    state = load_state(saved, rename={"fc*": "layer*", "bn/**": "norm/**"})
    assert {address.split("/")[0] for address in state} == {"layer1", "norm", "layer2"}
    report = load_report(saved, rename={"fc1": "in"})
    assert report.renamed == {"in/W": "fc1/W", "in/b": "fc1/b"}
    with pytest.raises(KeyError, match=r"'fc_1' matches nothing to rename. Did you mean 'fc1"):
        load_state(saved, rename={"fc_1": "in"})
    with pytest.raises(ValueError, match="The rename gives 'fc1/W' and 'fc2/W' one address, 'fc/W'"):
        load_state(saved, rename={"fc1": "fc", "fc2": "fc"})


def test_floats_are_cast_where_asked_and_whole_numbers_never(tmp_path):
    path = tmp_path / "half"
    save_state(State({"a": np.array([1.5], "float16"), "n": np.array([3], "int32")}), path)
    like = State({"a": [0.0], "n": np.array([3], "int64")})
    with pytest.raises(ArchiveError, match="retyped  n  int32"):
        load_state(path, like=like, retyped="cast")
    state = load_state(path, like=like, retyped="cast", where="a")
    assert state["a"].dtype == "float64"
    assert state["a"] == 1.5


def test_choices_and_what_needs_another_argument_are_named(saved):
    with pytest.raises(ValueError, match="missing is one of 'error', 'init'; got 'drop'"):
        load_state(saved, missing="drop")
    with pytest.raises(TypeError, match=r"missing='init' says what to do .* Write like="):
        load_state(saved, missing="init")
    with pytest.raises(TypeError, match='source="torch" needs to know'):
        load_state(saved, source="torch")
    with pytest.raises(TypeError, match="migrations= lead up to a revision"):
        load_state(saved, migrations={0: lambda state: state})
    with pytest.raises(TypeError, match="like= takes a State, a Store, a program or a network; got int"):
        load_state(saved, like=3)


def test_migrations_lead_up_to_a_revision(tmp_path):
    path = tmp_path / "old"
    save_state(State({"dense/kernel": [1.0]}), path)
    steps = {
        0: lambda state: state.rename({"dense": "fc"}),
        1: lambda state: state.rename({"fc/kernel": "fc/W"}),
    }
    assert list(load_state(path, revision=2, migrations=steps)) == ["fc/W"]
    save_state(State({"fc/kernel": [1.0]}), path, revision=1)
    assert list(load_state(path, revision=2, migrations=steps, like=State({"fc/W": [0.0]}))) == ["fc/W"]
    assert list(load_state(path)) == ["fc/kernel"]
    with pytest.raises(ArchiveError, match=r"is of revision 1 of its application, and .* up to revision 0"):
        load_state(path, revision=0)
    with pytest.raises(ArchiveError, match=r"no migration from 1 to 2\. Write migrations=\{1: f"):
        load_state(path, revision=2)
    with pytest.raises(TypeError, match="A migration takes a State and gives one; that from 1 gave NoneType"):
        load_state(path, revision=2, migrations={1: lambda state: None})
    with pytest.raises(ValueError, match="revision is a whole number from 0 on; got -1"):
        save_state(State({}), path, revision=-1)


def test_arrays_lie_in_the_file_until_they_are_changed(saved):
    state = load_state(saved)
    assert all(is_mapped(array) for array in state.values())
    assert all(is_mapped(array) for array in State(state).values())
    assert not any(is_mapped(array) for array in load_state(saved, mapped=False).values())
    with pytest.raises(ValueError, match="WRITEABLE"):
        state["fc1/W"].flags.writeable = True


def test_replacing_or_removing_the_file_leaves_the_values_that_were_loaded(saved):
    before = ptml.init(network(), seed=0)
    state = load_state(saved)
    save_state(ptml.init(network(), seed=1), saved)
    assert state == before
    saved.unlink()
    assert state == before


# ---- layers without a name


def unnamed(*initializers):
    return Sequential(*(Linear(n_in=2, n_out=2, bias=False, weight_initializer=one) for one in initializers))


def test_unnamed_layers_in_another_order_are_refused_with_both_orders(tmp_path):
    path = tmp_path / "two"
    save_state(ptml.init(unnamed(Ones(), Zeros()), seed=0), path)
    assert load_state(path, like=unnamed(Ones(), Zeros())) == ptml.init(unnamed(Ones(), Zeros()), seed=0)
    text = (
        r"two does not fit: its layers without a name are numbered by position, and stand in another order "
        r"there:\n"
        r"  the file     Linear_1 = Linear\(.*Ones\(\)\), Linear_2 = Linear\(.*Zeros\(\)\)\n"
        r"  the network  Linear_1 = Linear\(.*Zeros\(\)\), Linear_2 = Linear\(.*Ones\(\)\)\n"
        r"Give names to the layers, or say with a rename which is which: \{'Linear_1': ...\}"
    )
    with pytest.raises(ArchiveError, match=text):
        load_state(path, like=unnamed(Zeros(), Ones()))
    with pytest.raises(ArchiveError, match="another order"):
        load_state(path, like=unnamed(Zeros(), Ones(), Zeros()), missing="init")
    swapped = load_state(
        path, like=unnamed(Zeros(), Ones()), rename={"Linear_1": "Linear_2", "Linear_2": "Linear_1"}
    )
    np.testing.assert_array_equal(swapped["Linear_2/W"], np.ones((2, 2)))


def test_layers_that_are_equal_as_values_are_told_apart_in_one_process(tmp_path):
    one, other = unnamed(Ones(), Ones()).layers
    save_state(ptml.init(Sequential(one, other), seed=0), tmp_path / "two")
    assert load_state(tmp_path / "two", like=Sequential(one, other))
    text = r"another order there:\n  the file     Linear_1, Linear_2\n  the network  Linear_2, Linear_1\n"
    with pytest.raises(ArchiveError, match=text):
        load_state(tmp_path / "two", like=Sequential(other, one))


def test_a_store_refuses_another_order_too(tmp_path):
    path = tmp_path / "two"
    save_state(ptml.init(unnamed(Ones(), Zeros()), seed=0), path)
    X = Input("X", shape=(None, 2))
    with pytest.raises(ValueError, match="The state does not fit: its layers without a name"):
        ptml.compile_predict(unnamed(Zeros(), Ones())(X), state=load_state(path))
    predict = ptml.compile_predict(
        unnamed(Zeros(), Ones())(X), state=ptml.init(unnamed(Zeros(), Ones()), seed=0)
    )
    with pytest.raises(ValueError, match="The state does not fit: its layers without a name"):
        predict.store.load(load_state(path))


def test_a_layer_that_changed_and_kept_its_place_takes_its_values(tmp_path):
    path = tmp_path / "drops"
    net = Sequential(Dropout(p=0.1), Linear("fc", n_in=2, n_out=2), Dropout(p=0.3))
    save_state(ptml.init(net, seed=0), path)
    changed = Sequential(Dropout(p=0.1), Linear("fc", n_in=2, n_out=2), Dropout(p=0.5))
    assert load_state(path, like=changed) == ptml.init(net, seed=0)


def test_a_resaved_state_still_knows_its_layers(tmp_path):
    save_state(ptml.init(unnamed(Ones(), Zeros()), seed=0), tmp_path / "one")
    save_state(load_state(tmp_path / "one"), tmp_path / "two")
    with pytest.raises(ArchiveError, match="another order"):
        load_state(tmp_path / "two", like=unnamed(Zeros(), Ones()))


# ---- files of others


def test_archives_of_the_seeds_library_are_read_by_their_names(tmp_path, step):
    path = tmp_path / "seeds"
    state = step.state.replace({Role.PARAMETER: lambda W: W + 1, Role.OPTIMIZER: 0.5, "adam/step_count": 7})
    arrays = {}
    for address, array in state.items():
        if address.startswith("adam/") and address != "adam/step_count":
            kind, moment, layer, name = address.split("/")
            arrays[f"{layer}_{name}/{kind}/{moment}"] = array
        else:
            arrays[address if address == "adam/step_count" else address.replace("/", "_")] = array
    assert {"fc1_W", "fc1_W/adam/first_moment"} <= arrays.keys()
    save_file(arrays, path, {"generator_drop": '{"bit_generator": "PCG64"}'})
    assert load_state(path, like=step) == state
    assert load_report(path, like=step).renamed["adam/first_moment/fc1/W"] == "fc1_W/adam/first_moment"


def test_numbered_layers_of_the_seeds_library_are_found(tmp_path):
    net = unnamed(Ones(), Zeros())
    save_file({"Linear_1_W": np.eye(2), "Linear_2_W": 2 * np.eye(2)}, tmp_path / "seeds")
    np.testing.assert_array_equal(load_state(tmp_path / "seeds", like=net)["Linear_2/W"], 2 * np.eye(2))


@pytest.fixture
def torch_file(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "fc1.weight": rng.normal(size=(4, 3)).astype("float32"),
        "fc1.bias": np.ones(4, "float32"),
        "bn.weight": np.full(4, 2, "float32"),
        "bn.bias": np.full(4, 3, "float32"),
        "bn.running_mean": np.full(4, 4, "float32"),
        "bn.running_var": np.full(4, 5, "float32"),
        "bn.num_batches_tracked": np.array(9),
        "fc2.weight": rng.normal(size=(2, 4)).astype("float32"),
        "fc2.bias": np.zeros(2, "float32"),
    }
    save_file(arrays, tmp_path / "torch", {"format": "pt"})
    return tmp_path / "torch"


def test_a_state_dict_of_pytorch_is_renamed_and_transposed(torch_file, step):
    state = load_state(torch_file, like=step, source="torch", retyped="cast")
    plain = load_file(torch_file)
    np.testing.assert_array_equal(state["fc1/W"], plain["fc1.weight"].T)
    assert state["fc1/W"].flags.c_contiguous
    assert state["fc1/W"].dtype == "float64"
    np.testing.assert_array_equal(state["bn/scale"], plain["bn.weight"])
    np.testing.assert_array_equal(state["bn/running_var"], plain["bn.running_var"])
    assert set(state.roles.values()) == {Role.PARAMETER, Role.STATISTIC}
    report = load_report(torch_file, like=step, source="torch", retyped="cast")
    assert report.transposed == ("fc1/W", "fc2/W")
    assert report.renamed["bn/b"] == "bn.bias"


def test_positions_in_a_sequential_of_pytorch_are_renamed(tmp_path):
    save_file({"0.weight": np.zeros((4, 3)), "2.weight": np.ones((2, 4))}, tmp_path / "torch")
    net = Sequential(
        Linear("fc1", n_in=3, n_out=4, bias=False), ReLU(), Linear("fc2", n_in=4, n_out=2, bias=False)
    )
    state = load_state(tmp_path / "torch", like=net, source="torch", rename={"0": "fc1", "2": "fc2"})
    assert state["fc2/W"].shape == (4, 2)


def test_pytorchs_names_without_a_word_on_layouts_are_refused(torch_file):
    square = Linear("fc", n_in=2, n_out=2, bias=False)
    save_file({"fc.weight": np.array([[1.0, 2.0], [3.0, 4.0]])}, torch_file)
    names = {"fc.weight": "fc/W"}
    with pytest.raises(ArchiveError, match=r"(?s)PyTorch's \('fc.weight'\).*source=.torch.*\(1, 0\)"):
        load_state(torch_file, like=square, rename=names)
    turned = load_state(torch_file, like=square, rename=names, transpose={Linear: (1, 0)})
    np.testing.assert_array_equal(turned["fc/W"], [[1, 3], [2, 4]])
    as_it_lies = load_state(torch_file, like=square, rename=names, transpose={})
    np.testing.assert_array_equal(as_it_lies["fc/W"], [[1, 2], [3, 4]])
    assert list(load_state(torch_file)) == ["fc.weight"]


class Conv2D(ptml.Layer):
    """A layer of that name, with a kernel as ours lie."""

    @ptml.slot
    def W(self):
        return ptml.parameter((5, 6, 2, 3), Zeros())


class Mixer(ptml.Layer):
    @ptml.slot
    def W(self):
        return ptml.parameter((2, 2), Zeros())


def test_kernels_of_convolutions_change_their_axes(tmp_path):
    kernel = np.arange(180.0).reshape(3, 2, 5, 6)
    save_file({"conv.weight": kernel}, tmp_path / "torch")
    state = load_state(tmp_path / "torch", like=Conv2D("conv"), source="torch")
    np.testing.assert_array_equal(state["conv/W"], np.moveaxis(kernel, (0, 1), (3, 2)))


def test_layers_whose_layout_is_not_known_need_a_word(tmp_path):
    save_file({"mix.weight": np.array([[1.0, 2.0], [3.0, 4.0]])}, tmp_path / "torch")
    with pytest.raises(ArchiveError, match=r"(?s)lays out 'mix/W' \(of Mixer\) .*\{Mixer: \(1, 0\)\}"):
        load_state(tmp_path / "torch", like=Mixer("mix"), source="torch")
    for axes, corner in {(1, 0): 3, (0, 1): 2}.items():
        state = load_state(tmp_path / "torch", like=Mixer("mix"), source="torch", transpose={Mixer: axes})
        assert state["mix/W"][0, 1] == corner


def test_axes_that_are_no_order_are_refused(saved):
    with pytest.raises(ValueError, match=r"transpose takes for 'fc1' the old axes .* got \(1, 1\)"):
        load_state(saved, transpose={"fc1": (1, 1)})
    assert load_state(saved, transpose={"fc1": (1, 0)})["fc1/W"].shape == (4, 3)


def test_a_report_is_a_value(saved):
    report = load_report(saved)
    assert attrs.asdict(report, filter=lambda field, value: field.name == "loaded")["loaded"] == report.loaded
    assert report.state == load_state(saved)
