"""Saving, keeping, choosing and restoring checkpoints, and what fails on the way."""

from __future__ import annotations

import datetime
import errno
import io
import math
import os
import resource
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

from ptml_state import Checkpointer, CheckpointError, State, Store

ENOSPC = OSError(errno.ENOSPC, "No space left on device")


def state(value, size=3):
    """Give a state that is easy to tell from others."""
    return State({"fc/W": np.full(size, float(value)), "adam/step_count": value})


def saved(folder, *steps, **options):
    """Save a checkpoint at each step."""
    with Checkpointer(folder, **options) as checkpoints:
        for step in steps:
            assert checkpoints.save(step, state(step))
    return checkpoints


def steps(folder):
    """List the steps of what is in a folder, after checking that nothing else is."""
    found = Checkpointer(folder).all()
    assert sorted(path.name for path in folder.iterdir()) == [c.path.name for c in found]
    return [checkpoint.step for checkpoint in found]


class Data:
    """Something with a position."""

    def __init__(self, position):
        self.state = position

    def load(self, position):
        if position == "refused":
            raise ValueError("no such position")
        self.state = position


class Live:
    """What a program is to a checkpointer."""

    def __init__(self, values):
        self.store = Store(values)

    @property
    def values(self):
        return self.store.state

    @values.setter
    def values(self, new):
        self.store.load(new)


# ---- what is kept


def test_the_latest_three_stay(tmp_path):
    saved(tmp_path, 10, 20, 30, 40)
    assert steps(tmp_path) == [20, 30, 40]
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "000002-step-20",
        "000003-step-30",
        "000004-step-40",
    ]


def test_all_stay_where_asked(tmp_path):
    saved(tmp_path, *range(12), keep_last=None)
    assert steps(tmp_path) == list(range(12))


@pytest.mark.parametrize(("mode", "best"), [("min", [1, 3]), ("max", [2, 5])])
def test_the_best_stay_besides_and_nan_is_never_best(tmp_path, mode, best):
    with Checkpointer(tmp_path, keep_last=1, keep_best=2, mode=mode) as checkpoints:
        metrics = [math.nan, 1.0, 5.0, np.float32(2), 3.0, np.array(4.0), math.nan, None]
        for step, metric in enumerate(metrics):
            checkpoints.save(step, state(step), metric=metric)
        found = checkpoints.best()
    assert steps(tmp_path) == [*best, 7]
    assert found.step == (1 if mode == "min" else 2)
    assert found.metric == (1.0 if mode == "min" else 5.0)


def test_of_equals_the_later_is_best_and_without_metrics_none_is(tmp_path):
    with Checkpointer(tmp_path, keep_last=None) as checkpoints:
        checkpoints.save(1, state(1))
        assert checkpoints.best() is None
        for step in (2, 3):
            checkpoints.save(step, state(step), metric=0.5)
        checkpoints.save(4, state(4), metric=math.nan)
        assert checkpoints.best().step == 3


def test_the_latest_is_what_was_saved_last_not_the_highest_step(tmp_path):
    saved(tmp_path, 90, 100, keep_last=None)
    saved(tmp_path, 95, 100, keep_last=None)  # gone back, and over the same steps again
    assert steps(tmp_path) == [90, 100, 95, 100]
    assert Checkpointer(tmp_path).latest().path.name == "000004-step-100"


def test_a_checkpoint_of_another_name_is_kept_for_ever(tmp_path):
    saved(tmp_path, 1)
    (tmp_path / "000001-step-1").rename(tmp_path / "good")
    saved(tmp_path, 2, 3, 4, 5)
    assert Checkpointer(tmp_path).restore(tmp_path / "good") == state(1)
    assert [c.step for c in Checkpointer(tmp_path).all()] == [3, 4, 5]


def test_only_dead_runs_and_the_own_one_lose_checkpoints(tmp_path):
    other = Checkpointer(tmp_path, keep_last=2)
    other.save(1, state(1))
    with Checkpointer(tmp_path, keep_last=1) as checkpoints:
        for step in (2, 3):
            checkpoints.save(step, state(step))
        assert [c.step for c in checkpoints.all()] == [1, 3]
        other.close()
        checkpoints.save(4, state(4))
        assert [c.step for c in checkpoints.all()] == [4]


def test_a_checkpoint_that_cannot_be_deleted_is_told_of_and_the_new_one_is_there(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    rename = os.rename

    def refuse(source, target, **options):
        if Path(source).name == "000001-step-1":
            raise PermissionError(errno.EACCES, "Permission denied", str(source))
        rename(source, target, **options)

    monkeypatch.setattr("os.rename", refuse)
    with Checkpointer(tmp_path, keep_last=1) as checkpoints:
        with pytest.warns(UserWarning, match=r"step-1 is one too many, and cannot be deleted: .*Permission"):
            checkpoints.save(2, state(2))
        assert checkpoints.latest().step == 2


# ---- when to save


def test_every_is_in_steps(tmp_path):
    with Checkpointer(tmp_path, every=10, keep_last=None) as checkpoints:
        done = [checkpoints.save(step, state(step)) for step in range(25)]
        assert [step for step in range(25) if done[step]] == [0, 10, 20]
        assert checkpoints.due(30)
        assert not checkpoints.due(31)
        assert checkpoints.save(24, state(24), force=True)
    assert steps(tmp_path) == [0, 10, 20, 24]


def test_every_may_be_a_time(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with Checkpointer(tmp_path, every=datetime.timedelta(minutes=1), keep_last=None) as checkpoints:
        for step, seconds in enumerate([0, 59, 60, 61, 119, 121, 200]):
            now[0] = 100.0 + seconds
            checkpoints.save(step, state(step))
    assert steps(tmp_path) == [2, 5, 6]


def test_what_is_not_due_is_not_read(tmp_path):
    class Unreadable:
        @property
        def store(self):
            raise AssertionError

    with Checkpointer(tmp_path, every=2) as checkpoints:
        assert not checkpoints.save(1, Unreadable())


# ---- options and arguments


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"keep_last": 0}, ValueError, "keep_last is at least 1; got 0"),
        ({"keep_last": 1.5}, TypeError, "keep_last is a whole number; got 1.5"),
        ({"keep_best": -1}, ValueError, "keep_best is at least 0; got -1"),
        ({"keep_best": True}, TypeError, "keep_best is a whole number; got True"),
        ({"mode": "least"}, ValueError, "mode is 'min' or 'max', .* got 'least'"),
        ({"every": 0}, ValueError, "every is at least 1; got 0"),
        ({"every": "5 min"}, TypeError, "every is a whole number; got '5 min'"),
        ({"every": datetime.timedelta(0)}, ValueError, "every is a positive time"),
    ],
)
def test_options_are_checked(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        Checkpointer(tmp_path, **options)


def test_what_is_saved_is_checked_before_anything_is_written(tmp_path):
    with Checkpointer(tmp_path / "run") as checkpoints:
        for arguments, error, message in [
            ((-1, state(0)), ValueError, "step is at least 0; got -1"),
            ((1.0, state(0)), TypeError, "step is a whole number; got 1.0"),
            ((1, {"fc/W": 0}), TypeError, "save takes a program, a Store or a State; got dict"),
            ((1, state(0), {"rng": object()}), TypeError, r"extra\['rng'\] is .* JSON cannot hold"),
        ]:
            with pytest.raises(error, match=message):
                checkpoints.save(*arguments)
        with pytest.raises(TypeError, match=r"loader.state is .*ndarray"):
            checkpoints.save(1, state(0), loader=Data(np.zeros(2)))
        with pytest.raises(TypeError, match=r"A loader has a position.*got list"):
            checkpoints.save(1, state(0), loader=[1])
    assert not (tmp_path / "run").exists()


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(NotADirectoryError, match="run is a file; checkpoints are saved into a folder"):
        Checkpointer(tmp_path / "run")


def test_a_closed_checkpointer_reads_and_does_not_save(tmp_path):
    checkpoints = saved(tmp_path, 1)
    assert checkpoints.latest().step == 1
    with pytest.raises(ValueError, match="is closed; make a new one"):
        checkpoints.save(2, state(2))
    checkpoints.close()


# ---- reading


def test_where_nothing_was_saved_there_is_nothing_and_no_folder_is_made(tmp_path):
    checkpoints = Checkpointer(tmp_path / "none")
    assert checkpoints.latest() is checkpoints.best() is None
    assert checkpoints.all() == ()
    live = Live(state(0))
    assert checkpoints.resume(live) is None
    assert live.values == state(0)
    with pytest.raises(FileNotFoundError, match=r"There is no checkpoint in .*none"):
        checkpoints.restore()
    assert not (tmp_path / "none").exists()


def test_a_broken_checkpoint_is_skipped_with_its_reason(tmp_path):
    checkpoints = saved(tmp_path, 1, 2, 3)
    (tmp_path / "000003-step-3" / "state.safetensors").write_bytes(b"")
    (tmp_path / "000002-step-2" / "checkpoint.json").unlink()
    with pytest.warns(UserWarning, match=r"took .*p-1:\n.*step-3 is broken: .*\n.*step-2 is broken: it has"):
        assert checkpoints.latest().step == 1
    with pytest.warns(UserWarning, match="Skipped checkpoints that are broken"):
        assert checkpoints.restore() == state(1)
    with pytest.raises(
        CheckpointError, match=r"step-3 is broken: state\.safetensors is not what was written"
    ):
        checkpoints.restore(tmp_path / "000003-step-3")
    with pytest.raises(CheckpointError, match="step-3 is broken"):
        checkpoints.restore(checkpoints.all()[-1])
    assert [c.step for c in checkpoints.all()] == [1, 3]


def test_where_all_are_broken_nothing_starts_afresh(tmp_path):
    checkpoints = saved(tmp_path, 1, 2)
    for folder in tmp_path.iterdir():
        (folder / "SHA256SUMS").write_text("")
    for read in (checkpoints.latest, checkpoints.restore, lambda: checkpoints.resume(Live(state(0)))):
        with pytest.raises(CheckpointError, match=r"None of the checkpoints .* is whole:\n.*p-2.*\n.*p-1"):
            read()


def test_what_may_not_be_read_is_not_passed_over(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path, 1)

    def refuse(self):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    with pytest.raises(PermissionError, match="step-1"):
        checkpoints.latest()


def test_a_checkpoint_that_is_deleted_while_one_looks_is_no_broken_one(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path, 1, 2, 3)
    verify = type(checkpoints.latest()).verify
    meanwhile = iter([4, 5, 6])

    def overtaken(self):
        if (step := next(meanwhile, None)) is not None:
            shutil.rmtree(self.path)
            saved(tmp_path, step)
        verify(self)

    monkeypatch.setattr("ptml_state.checkpoints.checkpoint.Checkpoint.verify", overtaken)
    assert checkpoints.latest().step == 6


def test_a_program_and_its_data_go_on_where_they_were(tmp_path):
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(5, Live(state(5)), {"epoch": 1}, loader=Data({"batch": 3}))
    live, data = Live(state(0)), Data({"batch": 0})
    found = Checkpointer(tmp_path).resume(live, data)
    assert (found.step, found.extra, found.position) == (5, {"epoch": 1}, {"batch": 3})
    assert (live.values, data.state) == (state(5), {"batch": 3})


def test_a_position_is_neither_lost_nor_made_up(tmp_path):
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(1, state(1))
        with pytest.raises(ValueError, match=r"step-1 has no position of a data loader\. Save with save"):
            checkpoints.resume(Live(state(0)), Data(0))
        checkpoints.save(2, state(2), loader=Data(4))
        with pytest.raises(ValueError, match=r"step-2 has the position of a data loader\. Write resume"):
            checkpoints.resume(Live(state(0)))


def test_a_resume_that_fails_leaves_both_as_they_were(tmp_path):
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(1, state(1), loader=Data("refused"))
        live, data = Live(state(0)), Data("start")
        with pytest.raises(ValueError, match="no such position"):
            checkpoints.resume(live, data)
        assert (live.values, data.state) == (state(0), "start")
        checkpoints.save(2, State({"other/W": [0.0]}), loader=Data("there"))
        with pytest.raises(ValueError, match=r"step-2/state.* does not fit"):
            checkpoints.resume(live, data)
        assert (live.values, data.state) == (state(0), "start")


# ---- what fails


class Disk:
    """A disk that takes so many bytes and no more."""

    def __init__(self, room):
        self.room = room

    def opener(self):
        """Give what stands in for ``Path.open``."""
        plain, disk = Path.open, self

        class File(io.FileIO):
            def write(self, content):
                content = memoryview(content).cast("B")
                part = content[: disk.room]
                if len(content) and not part:
                    raise OSError(errno.ENOSPC, "No space left on device", self.name)
                disk.room -= len(part)
                return super().write(part)

        def opened(path, mode="r", buffering=-1, encoding=None, **options):
            if "x" not in mode and "w" not in mode:
                return plain(path, mode, buffering, encoding, **options)
            file = File(path, mode.replace("b", "").replace("t", ""))
            if buffering == 0:
                return file
            writer = io.BufferedWriter(file)
            return writer if "b" in mode else io.TextIOWrapper(writer, encoding)

        return opened


def test_a_full_disk_leaves_the_earlier_checkpoints_and_no_other(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    size = sum(file.stat().st_size for file in (tmp_path / "000001-step-1").iterdir())
    checkpoints = Checkpointer(tmp_path)
    for room in [*range(0, size, 37), size - 1]:
        with monkeypatch.context() as patch:
            patch.setattr("pathlib.Path.open", Disk(room).opener())
            with pytest.raises(OSError, match="No space left") as failed:
                checkpoints.save(2, state(2))
        assert failed.value.__notes__ == [
            "The checkpoint of step 2 was not written; those before it are as they were."
        ]
        assert [path.name for path in tmp_path.glob("[!.]*")] == ["000001-step-1"]
        assert list(tmp_path.glob(".writing*")) == []
        assert checkpoints.restore() == state(1)
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.open", Disk(size).opener())
        checkpoints.save(2, state(2))
    checkpoints.close()
    assert Checkpointer(tmp_path).restore() == state(2)


def test_a_limit_of_the_system_on_files_is_met_as_a_full_disk_is(tmp_path):
    saved(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpoints = Checkpointer(tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            checkpoints.save(2, state(2, size=50_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    checkpoints.close()
    assert steps(tmp_path) == [1]
    assert Checkpointer(tmp_path).restore() == state(1)


class FailsAt:
    """A function that fails when it is called for the n-th time, and works otherwise."""

    def __init__(self, function, n, error):
        self.function, self.n, self.error = function, n, error
        self.calls = 0

    def __call__(self, *arguments, **options):
        self.calls += 1
        if self.calls == self.n:
            raise self.error
        return self.function(*arguments, **options)


@pytest.mark.parametrize("name", ["fsync", "rename", "mkdir", "open"])
def test_whatever_call_fails_what_is_there_is_whole(tmp_path, monkeypatch, name):
    error = OSError(errno.EIO, "Input/output error")
    for n in range(1, 50):
        folder = tmp_path / str(n)
        saved(folder, 1, keep_last=1)
        call = FailsAt(getattr(os, name), n, error)
        checkpoints = Checkpointer(folder, keep_last=1)
        with monkeypatch.context() as patch:
            patch.setattr(f"os.{name}", call)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                try:
                    checkpoints.save(2, state(2))
                    failed = None
                except OSError as raised:
                    failed = raised
        if failed is None and call.calls < n:
            break
        assert failed in (None, error)
        # Not being able to delete an old one is no reason to stop.
        assert all("one too many, and cannot be deleted: [Errno 5]" in str(w.message) for w in told)
        # After an error the step may be there all the same, when only its last fsync failed.
        latest = checkpoints.latest()
        assert latest.restore() == state(latest.step)
        assert failed is not None or latest.step == 2
        if failed is not None:
            assert checkpoints.all()[0].step == 1
        checkpoints.save(3, state(3))
        checkpoints.close()
        assert steps(folder) == [3]
    assert 1 < n < 49
    checkpoints.close()


def test_an_interrupt_leaves_nothing_half_written(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    with Checkpointer(tmp_path) as checkpoints, monkeypatch.context() as patch:
        patch.setattr("os.fsync", FailsAt(os.fsync, 2, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt, match="step 2 was not written"):
            checkpoints.save(2, state(2))
    assert steps(tmp_path) == [1]


# ---- in the background


class Gate:
    """An fsync that waits until it is let go."""

    def __init__(self, monkeypatch, error=None):
        self.entered, self.opened, self.error = threading.Event(), threading.Event(), error
        self.fsync = os.fsync
        monkeypatch.setattr("os.fsync", self)

    def __call__(self, descriptor):
        if threading.current_thread() is not threading.main_thread():
            self.entered.set()
            assert self.opened.wait(60)
            if self.error is not None:
                raise self.error
        self.fsync(descriptor)


def test_what_is_saved_in_the_background_is_what_was_there_when_save_was_called(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    live, extra, data = Live(state(1)), {"losses": [1.0]}, Data({"batch": 1})
    with Checkpointer(tmp_path, asynchronous=True) as checkpoints:
        assert checkpoints.save(1, live, extra, loader=data)
        assert gate.entered.wait(60)
        assert list(tmp_path.glob("[!.]*")) == []
        live.values = state(2)
        extra["losses"].append(2.0)
        data.state["batch"] = 2
        gate.opened.set()
        found = checkpoints.latest()  # waits for what is on its way
        assert (found.step, found.extra, found.position) == (1, {"losses": [1.0]}, {"batch": 1})
        assert found.restore() == state(1)


def test_one_is_written_at_a_time_and_in_order(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    with Checkpointer(tmp_path, asynchronous=True, keep_last=None) as checkpoints:
        checkpoints.save(1, state(1))
        second = threading.Thread(target=checkpoints.save, args=(2, state(2)))
        second.start()
        second.join(0.1)
        assert second.is_alive()  # it waits for the first
        gate.opened.set()
        second.join()
        for step in (3, 4, 5):
            checkpoints.save(step, state(step))
    assert steps(tmp_path) == [1, 2, 3, 4, 5]


def test_a_save_that_is_not_due_waits_for_nothing_and_hides_nothing(tmp_path, monkeypatch):
    gate = Gate(monkeypatch, error=ENOSPC)
    checkpoints = Checkpointer(tmp_path, asynchronous=True, every=10)
    assert checkpoints.save(10, state(10))
    assert not checkpoints.save(11, state(11))  # while 10 is being written
    gate.opened.set()
    checkpoints._writer.join()
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(12, state(12))
    assert not checkpoints.save(13, state(13))
    checkpoints.close()


CALLS = {
    "save": lambda checkpoints: checkpoints.save(2, state(2)),
    "wait": lambda checkpoints: checkpoints.wait(),
    "latest": lambda checkpoints: checkpoints.latest(),
    "best": lambda checkpoints: checkpoints.best(),
    "all": lambda checkpoints: checkpoints.all(),
    "restore": lambda checkpoints: checkpoints.restore("somewhere"),
    "resume": lambda checkpoints: checkpoints.resume(Live(state(0))),
    "close": lambda checkpoints: checkpoints.close(),
    "the end of a with": lambda checkpoints: checkpoints.__exit__(None, None, None),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_error_in_the_background_is_raised_once_by_the_next_call(tmp_path, monkeypatch, call):
    with monkeypatch.context() as patch:
        gate = Gate(patch, error=ENOSPC)
        gate.opened.set()
        checkpoints = Checkpointer(tmp_path, asynchronous=True)
        checkpoints.save(1, state(1))
        with pytest.raises(OSError, match="No space left") as failed:
            CALLS[call](checkpoints)
        assert "The checkpoint of step 1 was not written" in failed.value.__notes__[-1]
    checkpoints.wait()
    assert checkpoints.latest() is None
    checkpoints.close()
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_background_does_not_hide_what_ended_the_block(tmp_path, monkeypatch):
    gate = Gate(monkeypatch, error=ENOSPC)
    gate.opened.set()

    def diverging():
        with Checkpointer(tmp_path, asynchronous=True) as checkpoints:
            checkpoints.save(1, state(1))
            raise ArithmeticError("diverged")

    with pytest.raises(ArithmeticError, match="diverged") as failed:
        diverging()
    assert "Then saving failed too: OSError(28" in failed.value.__notes__[0]


def test_an_error_that_nobody_asks_for_is_told_all_the_same(tmp_path, monkeypatch):
    gate = Gate(monkeypatch, error=OSError(errno.ENOSPC, "No space left on device"))
    checkpoints = Checkpointer(tmp_path, asynchronous=True)
    checkpoints.save(1, state(1))
    gate.opened.set()
    checkpoints._writer.join()
    forgotten = [checkpoints]
    del checkpoints
    with pytest.warns(UserWarning, match=r"step 1 was not written, and nobody asked: OSError\(28"):
        forgotten.clear()


def test_at_the_end_of_the_program_what_is_being_written_is_finished(tmp_path):
    script = (
        "import sys, numpy as np; from ptml_state import Checkpointer, State\n"
        "checkpoints = Checkpointer(sys.argv[1], asynchronous=True)\n"
        "checkpoints.save(3, State({'fc/W': np.arange(1e6)}))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", script, tmp_path], env=environment, check=True)
    assert steps(tmp_path) == [3]
    np.testing.assert_array_equal(Checkpointer(tmp_path).restore()["fc/W"], np.arange(1e6))


# ---- two at once

TOGETHER = """
import os, sys, traceback, numpy as np
from ptml_state import Checkpointer, State

def run(offset, folder, done, other):
    with Checkpointer(folder, keep_last=2, asynchronous=offset == 1) as checkpoints:
        for step in range(offset, 80, 2):
            checkpoints.save(step // 4, State({"fc/W": np.full(2000, step)}), {"value": step})
            mine = [c.extra["value"] for c in checkpoints.all() if c.extra["value"] % 2 == offset]
            assert mine == [value for value in (step - 2, step) if value >= 0], (step, mine)
        os.write(done, b"x")
        os.read(other, 1)  # nobody leaves before the other is done

ends = [os.pipe(), os.pipe()]
children = []
for offset in (0, 1):
    if (child := os.fork()) == 0:
        code = 1
        try:
            run(offset, sys.argv[1], ends[offset][1], ends[1 - offset][0])
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    children.append(child)
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""


def test_two_processes_save_into_one_folder_while_a_third_reads(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-c", TOGETHER, tmp_path], env=environment, stderr=subprocess.PIPE, text=True
    )
    seen = set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while process.poll() is None:
            checkpoints = Checkpointer(tmp_path)
            found = checkpoints.latest()
            if found is not None:
                values = set(checkpoints.restore()["fc/W"].tolist())
                assert len(values) == 1
                seen |= values
    assert process.returncode == 0, process.stderr.read()
    process.stderr.close()
    assert len(seen) > 1
    left = [c.extra["value"] for c in Checkpointer(tmp_path).all()]
    assert sorted(left) == [76, 77, 78, 79]
    assert all(not path.name.startswith(".") for path in tmp_path.iterdir())
