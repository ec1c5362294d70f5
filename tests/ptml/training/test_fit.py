"""The training loop: what it counts, when it ends, and that nothing gets lost whatever ends it."""

from __future__ import annotations

import _thread
import json
import math

import numpy as np
import pytest

import ptml
from ptml.activations import Tanh
from ptml.data import DataLoader
from ptml.layers import Dropout, Input, Linear, Sequential
from ptml.loss import CrossEntropy, SquaredError, supervised_loss
from ptml.metrics import R2
from ptml.optim import adam, cosine_schedule, nonfinite, sgd, skip_if
from ptml.training import STOP, EarlyStopping
from ptml_state import Checkpointer

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(50, 2))
TARGETS = ROWS[:, :1] * ROWS[:, 1:]
VALID = (ROWS[40:], TARGETS[40:])
TRAIN = (ROWS[:40], TARGETS[:40])


def _described(rule=None, observe=(), seed=0):
    net = Sequential(
        Linear("fc1", n_in=2, n_out=8), Tanh(), Dropout("drop", p=0.1), Linear("fc2", n_in=8, n_out=1)
    )
    prediction = net(Input("X", shape=(None, 2)))
    loss, _ = supervised_loss(prediction, SquaredError())
    step = ptml.optim.compile_train(loss, rule or adam(1e-2), observe=observe, seed=seed)
    return step, ptml.compile_evaluate(prediction, {"loss": SquaredError(), "R2": R2()}, state=step)


def _loader(**options):
    return DataLoader(*TRAIN, batch_size=16, shuffle=True, **options)


def _without_seconds(history):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


def _of_linear(rule, **options):
    """Give a step of ``y = w x`` from w = 0, whose every number is known."""
    X = Input("X", shape=(None, 1))
    fc = Linear("fc", n_in=1, n_out=1, bias=False, weight_initializer=ptml.initializers.Zeros())
    loss, _ = supervised_loss(fc(X), SquaredError())
    return ptml.optim.compile_train(loss, rule, seed=0, **options)


def test_the_rows_of_the_history_are_means_by_rows():
    step = _of_linear(sgd(0.0), observe=["learning_rate", "gradient_norm", "update_norm"])
    data = [(np.ones((3, 1)), np.full((3, 1), 1.0)), (np.ones((1, 1)), np.full((1, 1), 3.0))]
    history = ptml.fit(step, data, epochs=2, progress=False)
    # The losses are 1 and 9, the gradients -2 and -6.
    assert history["loss"].tolist() == [(3 * 1 + 9) / 4] * 2
    assert history["gradient_norm"].tolist() == [(3 * 2 + 6) / 4] * 2
    assert history["update_norm"].tolist() == [0.0, 0.0]
    assert history["steps"].tolist() == [2, 4]
    assert history.stopped == "epochs"


def test_it_is_the_loop_that_one_would_write():
    step, evaluate = _described()
    history = ptml.fit(step, _loader(), epochs=3, validation=VALID, evaluate=evaluate, progress=False)
    by_hand, measure = _described()
    means = []
    for _ in range(3):
        losses = [(float(by_hand(x, y)), len(x)) for x, y in _loader_at(len(means))]
        means.append(sum(loss * n for loss, n in losses) / 40)
    assert history["loss"].tolist() == means
    assert step.state == by_hand.state
    assert history[-1]["validation/R2"] == measure(*VALID)["R2"]


def _loader_at(epoch):
    loader = _loader()
    loader.load({**loader.state, "epoch": epoch})
    return loader


def test_the_learning_rate_is_what_it_really_was():
    rule = adam(cosine_schedule(1e-2, 9))
    step, _ = _described(rule, observe=["learning_rate"])
    history = ptml.fit(step, _loader(), epochs=3, progress=False)
    # Before the last step of each epoch 2, 5 and 8 have been made.
    expected = [0.5e-2 * (1 + math.cos(math.pi * k / 9)) for k in (2, 5, 8)]
    np.testing.assert_allclose(history["learning_rate"], expected, rtol=1e-12, atol=1e-18)


def test_arrays_are_shuffled_and_batched():
    step, _ = _described()
    history = ptml.fit(step, TRAIN, epochs=1, batch_size=16, progress=False)
    assert history["steps"].tolist() == [3]
    other, _ = _described()
    ptml.fit(other, _loader(), epochs=1, progress=False)
    assert step.state == other.state


def test_a_second_call_trains_on():
    step, _ = _described()
    loader = _loader()
    ptml.fit(step, loader, epochs=2, progress=False)
    second = ptml.fit(step, loader, epochs=2, progress=False)
    at_once, _ = _described()
    ptml.fit(at_once, _loader(), epochs=4, progress=False)
    assert len(second) == 2
    assert step.state == at_once.state


def test_early_stopping_goes_back_to_the_best_state():
    step = _of_linear(sgd(0.5))
    values = iter([3.0, 1.0, 2.0, float("nan"), 2.0, 0.0])
    states = []
    stop = EarlyStopping("validation/loss", patience=3)
    history = ptml.fit(
        step,
        [(np.ones((1, 1)), np.ones((1, 1)))],
        epochs=9,
        validation=VALID,
        evaluate=lambda x, y: next(values),
        stop=stop,
        callbacks=[lambda event: states.append(step.state) if event.kind == "epoch" else None],
        progress=False,
    )
    assert history.stopped == "no improvement"
    assert (len(history), history.best_epoch) == (5, 2)
    assert history.best_state == states[1] == step.state


def test_the_best_of_a_maximum_needs_to_be_better_by_a_margin():
    values = iter([1.0, 1.05, 1.2, 1.25])
    history = ptml.fit(
        _of_linear(sgd(0.5)),
        [(np.ones((1, 1)), np.ones((1, 1)))],
        epochs=9,
        validation=VALID,
        evaluate=lambda x, y: {"loss": 0.0, "score": next(values)},
        stop=EarlyStopping("validation/score", patience=1, min_delta=0.1, mode="max", restore_best=False),
        progress=False,
    )
    assert (len(history), history.best_epoch) == (2, 1)


def test_callbacks_are_told_and_can_steer_and_stop():
    step, evaluate = _described(observe=["update_norm"])
    told = []

    def callback(event):
        told.append((event.kind, event.epoch, event.step))
        if event.kind == "step":
            assert set(event.values) == {"loss", "update_norm"}
        if event.kind == "epoch" and event.epoch == 1:
            assert event.values["steps"] == 3
            assert len(event.history) == 0
            event.program.store.set({"fc2/b": np.array([5.0])})
        return STOP if event.step == 4 else None

    history = ptml.fit(
        step, _loader(), epochs=5, validation=VALID, evaluate=evaluate, callbacks=[callback], progress=False
    )
    steps = [("step", 1, k) for k in (1, 2, 3)]
    assert told == [*steps, ("epoch", 1, 3), ("step", 2, 4), ("end", 1, 4)]
    assert history.stopped == "callback"
    assert abs(step.state["fc2/b"][0] - 5.0) < 0.1


class _Cut(Exception):
    """What the tests throw."""


def _run(folder, epochs, *, every=None, callbacks=(), resume=True, keep=2):
    step, evaluate = _described(observe=["learning_rate"])
    checkpoints = Checkpointer(folder, keep_last=keep, keep_best=1, every=every)
    with checkpoints:
        history = ptml.fit(
            step,
            _loader(),
            epochs=epochs,
            validation=VALID,
            evaluate=evaluate,
            stop=EarlyStopping(patience=50),
            checkpoints=checkpoints,
            resume=resume,
            callbacks=callbacks,
            progress=False,
        )
    return step, history


@pytest.mark.parametrize("every", [None, 1, 2, 5])
@pytest.mark.parametrize("cut", [1, 3, 4, 8])
def test_an_exception_of_a_callback_loses_nothing(tmp_path, every, cut):
    whole, expected = _run(tmp_path / "whole", 4, every=every)

    def callback(event):
        if event.kind == "step" and event.step == cut:
            raise _Cut

    with pytest.raises(_Cut) as caught:
        _run(tmp_path / "cut", 4, every=every, callbacks=[callback])
    assert caught.value.__notes__ == [f"fit stopped here after step {cut}; program.store has the state."]
    step, history = _run(tmp_path / "cut", 4, every=every)
    assert step.store.state == whole.store.state
    assert _without_seconds(history) == _without_seconds(expected)
    assert history.best_epoch == expected.best_epoch
    assert history.best_state == expected.best_state


@pytest.mark.parametrize("cut", [2, 3, 7])
def test_ctrl_c_finishes_the_step_saves_and_returns(tmp_path, cut):
    whole, expected = _run(tmp_path / "whole", 4)

    def callback(event):
        if event.kind == "step" and event.step == cut:
            _thread.interrupt_main()

    step, history = _run(tmp_path / "cut", 4, callbacks=[callback])
    assert history.stopped == "interrupted"
    assert step.state["adam/step_count"] == cut
    resumed, history = _run(tmp_path / "cut", 4)
    assert resumed.store.state == whole.store.state
    assert _without_seconds(history) == _without_seconds(expected)


def test_a_second_ctrl_c_ends_it_at_once():
    step, _ = _described()

    def callback(event):
        if event.kind == "step":
            _thread.interrupt_main()
            _thread.interrupt_main()

    with pytest.raises(KeyboardInterrupt):
        ptml.fit(step, _loader(), epochs=3, callbacks=[callback], progress=False)


def test_a_full_disk_leaves_the_state_and_the_checkpoints_before(tmp_path, monkeypatch):
    whole, expected = _run(tmp_path / "whole", 4)
    from ptml_state.checkpoints import checkpointer

    write, calls = checkpointer.write_checkpoint, []

    def failing(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return write(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(checkpointer, "write_checkpoint", failing)
        with pytest.raises(OSError, match="No space left") as caught:
            _run(tmp_path / "cut", 4)
    assert "fit stopped here after step 6; program.store has the state." in caught.value.__notes__
    assert Checkpointer(tmp_path / "cut").latest().step == 3
    step, history = _run(tmp_path / "cut", 4)
    assert step.store.state == whole.store.state
    assert _without_seconds(history) == _without_seconds(expected)


def test_more_epochs_go_on_where_a_finished_run_ended(tmp_path):
    whole, expected = _run(tmp_path / "whole", 5)
    _run(tmp_path / "parts", 2)
    step, history = _run(tmp_path / "parts", 5)
    assert step.store.state == whole.store.state
    assert _without_seconds(history) == _without_seconds(expected)


def test_a_run_that_is_finished_is_given_back(tmp_path):
    first, expected = _run(tmp_path, 3)
    again, history = _run(tmp_path, 3)
    assert again.store.state == first.store.state
    assert history.rows == expected.rows
    assert history.best_state == expected.best_state


def test_a_folder_with_another_run_is_refused(tmp_path):
    _run(tmp_path, 1)
    with pytest.raises(
        ValueError, match=r"the checkpoints of a run, the latest of step 3\. Write resume=True"
    ):
        _run(tmp_path, 1, resume=False)
    other = tmp_path / "other"
    step, _ = _described()
    with Checkpointer(other) as checkpoints:
        checkpoints.save(1, step, loader=_loader())
    with pytest.raises(ValueError, match="was not saved by fit"):
        _run(other, 1)


def test_the_history_prints_and_exports(tmp_path):
    step, evaluate = _described()
    history = ptml.fit(step, _loader(), epochs=20, validation=VALID, evaluate=evaluate, progress=False)
    lines = str(history).splitlines()
    assert lines[0].split()[:3] == ["epoch", "steps", "loss"]
    assert [line.split()[0] for line in lines[1:14]] == [*"123456", "...", *map(str, range(15, 21))]
    assert lines[14] == "stopped: epochs"
    assert history.to_dict()["loss"] == history["loss"].tolist()
    history.to_csv(tmp_path / "history.csv")
    header, first, *_ = (tmp_path / "history.csv").read_text().splitlines()
    assert header == "epoch,steps,loss,validation/loss,validation/R2,seconds"
    assert float(first.split(",")[2]) == history["loss"][0]
    history.to_jsonl(tmp_path / "history.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert rows == history.rows
    figure = history.plot(tmp_path / "history.png")
    assert [axes.get_title() for axes in figure.axes] == ["loss", "R2"]
    assert (tmp_path / "history.png").stat().st_size > 1000
    with pytest.raises(KeyError, match="no 'accuracy'; it has epoch, steps, loss, validation/loss"):
        history["accuracy"]


def test_lines_are_printed_where_nobody_watches(capsys):
    step, _ = _described()
    ptml.fit(step, _loader(), epochs=100)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("epoch   1/100  loss ")
    assert lines[-1].startswith("epoch 100/100  loss ")
    assert len(lines) <= 41
    ptml.fit(step, _loader(), epochs=2, progress=False)
    assert capsys.readouterr().out == ""


def test_a_bar_is_shown_on_a_terminal(capsys, monkeypatch):
    step, _ = _described()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    ptml.fit(step, _loader(), epochs=2)
    assert "2/2" in capsys.readouterr().out


# ---- what it notices


def test_a_step_that_is_skipped_is_noticed_once_and_ends_nothing():
    step, _ = _described(skip_if(adam(1e-2), nonfinite()))
    data = [(np.full((2, 2), np.nan), np.ones((2, 1))), (np.ones((2, 2)), np.ones((2, 1)))]
    history = ptml.fit(step, data, epochs=3, progress=False)
    assert history.stopped == "epochs"
    assert history.notices == ["The loss is nan at step 1 (epoch 1): the batch has 4 NaN in X."]


def test_a_loss_that_diverges_ends_the_run_and_names_the_first_leaf(tmp_path):
    step = _of_linear(sgd(1e155))
    data = DataLoader(np.ones((4, 1)), np.ones((4, 1)), batch_size=1)
    with Checkpointer(tmp_path, every=1) as checkpoints:
        history = ptml.fit(step, data, epochs=3, checkpoints=checkpoints, progress=False)
    # w becomes 2e155, then -4e310: infinite.
    assert history.stopped == "diverged"
    assert history.notices == [
        "The loss is inf at step 2 (epoch 1): the first leaf to be so was fc/W, after step 2."
    ]
    assert np.isinf(step.state["fc/W"]).all()
    assert np.isfinite(Checkpointer(tmp_path).restore()["fc/W"]).all()


def test_parameters_that_do_not_move_are_noticed():
    step = _of_linear(sgd(0.0), observe=["learning_rate"])
    history = ptml.fit(step, [(np.ones((2, 1)), np.ones((2, 1)))], epochs=2, progress=False)
    [notice] = history.notices
    assert notice.startswith("No parameter moved in epoch 1, at a learning rate of 0. Is a learning rate or")


def test_a_network_that_learns_no_more_than_the_mean_is_noticed():
    X = Input("X", shape=(None, 1))
    prediction = Linear("fc", n_in=1, n_out=1)(X)
    loss, _ = supervised_loss(prediction, SquaredError())
    step = ptml.optim.compile_train(loss, sgd(1e-9), seed=0)
    evaluate = ptml.compile_evaluate(prediction, {"loss": SquaredError()}, state=step)
    train = (np.zeros((4, 1)), np.array([[1.0], [2.0], [3.0], [2.0]]))
    valid = (np.ones((2, 1)), np.array([[1.0], [3.0]]))
    history = ptml.fit(
        step, train, epochs=1, batch_size=2, validation=valid, evaluate=evaluate, progress=False
    )
    # The mean of the training targets is 2: a squared error of 1 on both.
    [notice] = history.notices
    assert "on the validation rows is no better than 1, that of one and the same prediction" in notice


def test_rows_on_both_sides_are_noticed_and_groups_refused():
    step, evaluate = _described()
    history = ptml.fit(
        step,
        TRAIN,
        epochs=1,
        batch_size=8,
        validation=(ROWS[35:], TARGETS[35:]),
        evaluate=evaluate,
        progress=False,
    )
    assert history.notices[0].startswith("5 of the 15 validation rows have the features of a training row")
    for groups, error, text in [
        ((np.arange(40), np.arange(30, 40)), ValueError, "10 of the 10 validation groups .*: 30, 31, 32"),
        ((np.arange(39), np.arange(10)), ValueError, "names 39 training rows, and there are 40"),
        (np.arange(40), TypeError, "groups= is a pair"),
    ]:
        with pytest.raises(error, match=text):
            ptml.fit(
                step, TRAIN, epochs=1, batch_size=8, validation=VALID, evaluate=evaluate, groups=groups,
                progress=False,
            )  # fmt: skip


def test_a_short_batch_that_moves_a_horizon_is_noticed():
    net = Linear("fc", n_in=2, n_out=1)
    X = Input("X", shape=(None, 2))
    loss, _ = supervised_loss(net(X), SquaredError())
    rule = adam(cosine_schedule(1e-2, 10 * (40 // X.shape[0])))
    step = ptml.optim.compile_train(loss, rule, seed=0)
    assert step.rates_set_by_data == ("Adam",)
    [notice] = ptml.fit(step, _loader(), epochs=1, progress=False).notices
    assert notice.startswith("The last batch has 8 rows and the others 16, and the learning rate of Adam")
    assert ptml.fit(step, _loader(drop_last=True), epochs=1, progress=False).notices == []


def test_inputs_that_are_cast_at_every_call_are_noticed():
    step = _of_linear(sgd(0.1))
    data = DataLoader(np.ones((4, 1), "float32"), np.ones((4, 1)), batch_size=2)
    [notice] = ptml.fit(step, data, epochs=1, progress=False).notices
    assert notice.startswith("X is float32, and float64 is declared: every batch is cast.")


# ---- what it refuses


def test_arguments_that_make_no_sense_say_so(tmp_path):
    step, evaluate = _described()
    loader = _loader()
    checkpoints = Checkpointer(tmp_path)
    stop = EarlyStopping()
    for options, error, text in [
        ({"epochs": 0}, ValueError, "epochs is a positive whole number; got 0"),
        ({"validation": VALID}, TypeError, "validation= needs what measures it"),
        ({"evaluate": evaluate}, TypeError, "evaluate= needs the data"),
        ({"resume": True}, TypeError, "give checkpoints=Checkpointer"),
        ({"batch_size": 4}, TypeError, "batch_size= is for arrays"),
        ({"data": TRAIN}, TypeError, "say how many rows a batch has"),
        ({"data": iter([])}, TypeError, "gives its batches once"),
        ({"data": 3}, TypeError, "data is a DataLoader, a tuple of arrays"),
        (
            {"data": [TRAIN], "checkpoints": checkpoints},
            TypeError,
            "the place in the data, which a list does",
        ),
        (
            {"stop": stop, "checkpoints": checkpoints, "validation": VALID, "evaluate": evaluate},
            ValueError,
            r"keep_best=1, mode='min'\)",
        ),
        ({"stop": stop}, ValueError, "monitors 'validation/loss', which no epoch has; there are loss"),
    ]:
        with pytest.raises(error, match=text):
            ptml.fit(step, **{"data": loader, "epochs": 1, "progress": False, **options})
    with pytest.raises(ValueError, match="mode must be 'min' or 'max'"):
        EarlyStopping(mode="maximum")


def test_a_program_that_gives_no_loss_says_so():
    X = Input("X", shape=(None, 2))
    program = ptml.function([X], X * 2)
    with pytest.raises(TypeError, match="A step gives a loss, or what begins with one"):
        ptml.fit(program, [(np.ones((2, 2)),)], epochs=1, progress=False)


def test_the_baseline_of_labels_is_their_entropy():
    scores = Input("scores", shape=(None, 3))
    evaluate = ptml.compile_evaluate(scores, {"loss": CrossEntropy(expect_logits=True)})
    found = evaluate.baseline(np.array([0, 0, 1, 2]), np.array([0, 1]))
    assert found["loss"] == pytest.approx(-(math.log(0.5) + math.log(0.25)) / 2)
