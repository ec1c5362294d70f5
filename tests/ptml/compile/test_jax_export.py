"""``program.to_jax()``: the pure program under JAX's own transformations.

Run as a script, with a folder, this file is the process that has four devices.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

import ptml
from ptml.activations import ReLU
from ptml.bits import numbers
from ptml.layers import BatchNorm, Dropout, Input, Linear, Sequential
from ptml.loss import CrossEntropy, supervised_loss
from ptml.optim import adam, chain, clip_by_global_norm, compile_train, cosine_schedule
from ptml_state import Role, State, load_state, save_state

jax = pytest.importorskip("jax")

KEEP, HIDDEN, ROWS = 0.7, 6, 16


@functools.cache
def compiled():
    """Compile a step that also gives the mask, and the gradients, in Python."""
    with pytensor.config.change_flags(floatX="float32"):
        hidden = Sequential(
            # A bias here would have no gradient but rounding, of which Adam makes steps.
            Linear("fc1", n_in=5, n_out=HIDDEN, bias=False),
            BatchNorm("bn", n_in=HIDDEN),
            Dropout("drop", p=1 - KEEP),
        )
        noisy = hidden(Input("X", (None, 5)))
        logits = Linear("fc2", n_in=HIDDEN, n_out=3)(ReLU()(noisy))
        loss, _ = supervised_loss(logits, CrossEntropy(expect_onehot_labels=False, expect_logits=True))
        rule = chain(clip_by_global_norm(1.0), adam(cosine_schedule(0.05, 20)))
        options = {"mode": Mode(linker="py", optimizer="fast_compile")}
        step = compile_train(loss, rule, extra_outputs=[pt.neq(noisy, 0)], seed=0, compile_kwargs=options)
        parameters = ptml.slots(loss, Role.PARAMETER)
        gradients = ptml.function(
            [*step.inputs], pytensor.grad(loss, list(parameters)), state=step, **options
        )
        return step, gradients, loss


def batches(n):
    rng = np.random.default_rng(0)
    for _ in range(n):
        yield rng.normal(size=(ROWS, 5)).astype("float32"), rng.integers(0, 3, ROWS).astype("int32")


def mask_of(leaf):
    words = numbers([int(word) for word in leaf], 0, ROWS * HIDDEN, "uint32")
    return (words < round(KEEP * 2**32)).reshape(ROWS, HIDDEN)


def close(state, wanted):
    """Compare a state of JAX's arrays with one of ours, but for the width of its clocks."""
    state = State(state)
    assert list(state) == list(wanted)
    assert state.roles == wanted.roles
    exact = Role.CLOCK | Role.GENERATOR
    for address, value in state.select(exact).items():
        np.testing.assert_array_equal(value, wanted[address])
    for address, value in state.select(~exact).items():
        assert value.dtype == wanted[address].dtype
        np.testing.assert_allclose(value, wanted[address], rtol=1e-3, atol=1e-6, err_msg=address)


def on_a_mesh(folder):
    """Train with the batch split over all devices, and write down what came of it."""
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    mesh = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(AxisType.Auto,))
    everywhere, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    step, *_ = compiled()
    run = jax.jit(step.to_jax())
    state = jax.device_put(load_state(folder / "first.safetensors"), everywhere)
    losses, masks = [], []
    for batch in batches(3):
        placed = jax.device_put(batch, split)
        (loss, mask), state = run(state, *placed)
        losses.append(float(loss))
        masks.append(np.asarray(mask).tolist())
    found = {
        "devices": len(jax.devices()),
        "shards": len({shard.device for shard in placed[0].addressable_shards}),
        "rows": placed[0].addressable_shards[0].data.shape[0],
        "replicated": all(leaf.value.sharding.is_fully_replicated for leaf in state.leaves),
        "reduces": "all-reduce" in run.lower(state, *placed).compile().as_text(),
        "losses": losses,
        "masks": masks,
    }
    save_state(State(state), folder / "last.safetensors")
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    on_a_mesh(Path(sys.argv[1]))
    sys.exit()


@pytest.mark.parametrize("wide", [False, True])
def test_a_step_under_jit_is_the_programs_own_and_is_compiled_once(wide):
    step, *_ = compiled()
    with jax.enable_x64(wide):
        exported, traced = step.to_jax(), []

        @jax.jit
        def run(state, *batch):
            traced.append(batch)
            return exported(state, *batch)

        ours = theirs = step.state
        for batch in batches(3):
            (loss, mask), ours = step.pure(ours, *batch)
            (jax_loss, jax_mask), theirs = run(theirs, *batch)
            np.testing.assert_allclose(jax_loss, loss, rtol=1e-5)
            np.testing.assert_array_equal(jax_mask, mask)
            assert isinstance(jax_loss, jax.Array)
            assert jax_loss.dtype == "float32"
        # The first state is made of numpy arrays, which JAX traces for as for its own.
        assert len(traced) == 1
    assert theirs["adam/step_count"].dtype == ("int64" if wide else "int32")
    close(theirs, ours)


def test_grad_of_the_parameters_is_pytensors_gradient():
    step, gradients, _ = compiled()
    state, (batch,) = step.state, batches(1)
    run = step.to_jax()
    parameters, rest = state.partition(Role.PARAMETER)

    @jax.jit
    def loss(parameters):
        return run(State.combine(parameters, rest), *batch)[0][0]

    value, found = jax.jit(jax.value_and_grad(loss))(parameters)
    (wanted_value, _), _ = step.pure(state, *batch)
    np.testing.assert_allclose(value, wanted_value, rtol=1e-5)
    assert list(found) == list(parameters)
    wanted, _ = gradients.pure(state, *batch)
    for address, gradient in zip(parameters, wanted, strict=True):
        np.testing.assert_allclose(found[address], gradient, rtol=1e-4, atol=1e-6, err_msg=address)
    # One more way to the same numbers: go a little along a direction, with the masks held by the state.
    direction = np.sign(found["fc2/W"])
    moved = [
        float(loss(parameters.replace({"fc2/W": parameters["fc2/W"] + s * 1e-2 * direction})))
        for s in (1, -1)
    ]
    slope = (moved[0] - moved[1]) / 2e-2
    np.testing.assert_allclose(slope, np.abs(found["fc2/W"]).sum(), rtol=1e-2)


def test_vmap_over_states_trains_an_ensemble():
    step, _, network = compiled()
    members = [step.state | ptml.init(network, seed=seed) for seed in (1, 2, 3)]
    stacked = jax.tree.map(lambda *values: np.stack(values), *members)
    run = jax.jit(jax.vmap(step.to_jax(), in_axes=(0, None, None)))
    ours = members
    for batch in batches(3):
        before = ours
        results = [step.pure(member, *batch) for member in ours]
        ours = [new for _, new in results]
        (losses, masks), stacked = run(stacked, *batch)
        np.testing.assert_allclose(losses, [outputs[0] for outputs, _ in results], rtol=1e-5)
        for member, mask in zip(before, masks, strict=True):
            np.testing.assert_array_equal(mask, mask_of(member["drop/key"]))
        assert len({np.asarray(mask).tobytes() for mask in masks}) == 3
    for index, member in enumerate(ours):
        close(jax.tree.map(lambda value, i=index: value[i], stacked), member)


def test_vmap_over_batches_goes_from_one_state_to_many():
    step, *_ = compiled()
    state, several = step.state, list(batches(4))
    X, y = (np.stack(arrays) for arrays in zip(*several, strict=True))
    (losses, masks), news = jax.jit(jax.vmap(step.to_jax(), in_axes=(None, 0, 0)))(state, X, y)
    assert losses.shape == (4,)
    for index, batch in enumerate(several):
        (loss, _), new = step.pure(state, *batch)
        np.testing.assert_allclose(losses[index], loss, rtol=1e-5)
        # One generator in one call: the masks are the state's, whatever the batch.
        np.testing.assert_array_equal(masks[index], mask_of(state["drop/key"]))
        close(jax.tree.map(lambda value, i=index: value[i], news), new)


def test_a_batch_split_over_four_devices_trains_as_on_one(tmp_path):
    step, *_ = compiled()
    state = step.state
    save_state(state, tmp_path / "first.safetensors")
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    process = subprocess.run(
        [sys.executable, __file__, tmp_path],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["devices"] == found["shards"] == 4
    assert found["rows"] == ROWS // 4
    assert found["replicated"]
    assert found["reduces"]
    run = jax.jit(step.to_jax())
    for batch, found_loss, found_mask in zip(batches(3), found["losses"], found["masks"], strict=True):
        (loss, mask), state = run(state, *batch)
        np.testing.assert_allclose(found_loss, loss, rtol=1e-5)
        np.testing.assert_array_equal(found_mask, mask)
    close(load_state(tmp_path / "last.safetensors"), State(state))


def test_a_state_passes_through_what_the_program_does_not_know():
    step, *_ = compiled()
    teacher = State({"teacher/W": np.arange(3.0, dtype="float32")}, Role.STATISTIC)
    (batch,) = batches(1)
    _, new = jax.jit(step.to_jax())(teacher | step.state, *batch)
    assert list(new) == ["teacher/W", *step.state]
    assert State(new)["teacher"] == teacher["teacher"]


def test_a_leaf_of_another_shape_is_named():
    step, *_ = compiled()
    state = step.state.drop("bn/b") | State({"bn/b": np.zeros(1, "float32")})
    (batch,) = batches(1)
    with pytest.raises(TypeError, match=r"has 'bn/b' as float32\[1\], where float32\[6\] is declared"):
        jax.jit(step.to_jax())(state, *batch)
