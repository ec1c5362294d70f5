"""Who lives, who is dead, and what the dead leave."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from ptml_state.checkpoints.run import Run, is_alive, sweep


@pytest.fixture
def dead(tmp_path):
    """Give the name of a run whose process is gone, with a folder that it was filling and one it emptied."""
    script = (
        "import sys, os, pathlib; from ptml_state.checkpoints.run import Run\n"
        "run = Run(pathlib.Path(sys.argv[1])); print(run.name)\n"
        "for folder in (run.writing(), run.removing()):\n"
        "    folder.mkdir(); (folder / 'part').write_text('half')\n"
        "sys.stdout.flush(); os.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run(
        [sys.executable, "-c", script, tmp_path], env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == -9, process.stderr
    return process.stdout.strip()


def test_a_run_lives_until_it_gives_its_claim_back(tmp_path):
    run = Run(tmp_path)
    assert is_alive(tmp_path, run.name)
    run.release()
    assert not is_alive(tmp_path, run.name)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_takes_what_the_dead_left_and_nothing_else(tmp_path, dead):
    run = Run(tmp_path)
    mine = run.writing()
    orphan, foreign = tmp_path / ".writing-0123abc-4", tmp_path / ".cache"
    for folder in (mine, orphan, foreign, tmp_path / "000001-step-3"):
        folder.mkdir()
        (folder / "file").write_text("")
    assert not is_alive(tmp_path, dead)
    assert len(list(tmp_path.glob(f".*{dead}*"))) == 3
    sweep(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {mine.name, f".run-{run.name}.lock", ".cache", "000001-step-3"}
    run.release()


def test_what_cannot_be_deleted_stays_with_its_lock_for_the_next_sweep(tmp_path, dead, monkeypatch):
    before = sorted(tmp_path.iterdir())

    def refuse(path, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", refuse)
        sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_there_is_nothing_to_sweep_where_there_is_no_folder(tmp_path):
    sweep(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_run_that_is_taken_for_dead_while_it_starts_starts_again(tmp_path, monkeypatch):
    lock = fcntl.flock
    swept = []

    def late(descriptor, operation):
        if not swept and operation & fcntl.LOCK_EX:
            swept.append(list(tmp_path.glob(".run-*")))
            sweep(tmp_path)
        lock(descriptor, operation)

    monkeypatch.setattr("fcntl.flock", late)
    run = Run(tmp_path)
    assert len(swept[0]) == 1
    assert not swept[0][0].exists()
    assert is_alive(tmp_path, run.name)
    run.release()


def test_a_run_that_is_looked_at_while_it_starts_starts_again(tmp_path, monkeypatch):
    lock = fcntl.flock
    looked = []

    def looked_at(descriptor, operation):
        if not looked:
            looked.extend(tmp_path.glob(".run-*"))
            with looked[0].open() as file:
                lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                lock(descriptor, operation)
        lock(descriptor, operation)

    monkeypatch.setattr("fcntl.flock", looked_at)
    run = Run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f".run-{run.name}.lock"] != [looked[0].name]
    run.release()


def test_without_locks_a_run_says_so_and_everybody_lives(tmp_path, monkeypatch):
    def unsupported(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", unsupported)
    with pytest.warns(UserWarning, match=r"has no locks \(No locks available\).*Delete old checkpoints by"):
        run = Run(tmp_path)
    other = tmp_path / ".run-0a.lock"
    other.write_text("")
    sweep(tmp_path)
    assert is_alive(tmp_path, run.name)
    assert is_alive(tmp_path, "0a")
    run.release()
    assert not is_alive(tmp_path, run.name)


def test_a_child_that_inherits_a_claim_does_not_give_it_back(tmp_path, monkeypatch):
    run = Run(tmp_path)
    child = os.dup(run._descriptor)
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: -1)
        assert not run.is_mine
        run.release()
    assert is_alive(tmp_path, run.name)
    os.close(child)


def test_a_lock_that_nobody_may_open_is_a_living_runs(tmp_path, monkeypatch):
    (tmp_path / ".run-0a.lock").write_text("")

    def refuse(path, *options, **more):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("os.open", refuse)
    assert is_alive(tmp_path, "0a")
    sweep(tmp_path)
    assert (tmp_path / ".run-0a.lock").exists()
