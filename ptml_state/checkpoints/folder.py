"""A folder of checkpoints: how they are listed and chosen, come in and go."""

from __future__ import annotations

import contextlib
import errno
import math
import operator
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from ptml_state.checkpoints.checkpoint import Checkpoint, CheckpointError, read_checkpoint
from ptml_state.checkpoints.run import Run, is_alive

__all__ = ["best_first", "best_whole", "commit", "described", "newest_whole", "paths_in", "retire"]

# A number that grows with each that is saved, so that names tell the order, and the step.
_NAME = re.compile(r"(\d{6,})-step-(\d+)")

SKIPPED = "Skipped checkpoints that are broken, and took {path}:\n{reasons}"
ALL_BROKEN = "None of the checkpoints in {directory} that come into question is whole:\n{reasons}"
STAYS = "The checkpoint {path} is one too many, and cannot be deleted: {error}"


def paths_in(directory: Path) -> list[Path]:
    """List what is named as a checkpoint, oldest first."""
    if not directory.is_dir():
        return []
    found = [(match, path) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for *_, path in sorted((int(match[1]), int(match[2]), path) for match, path in found)]


def described(paths: Iterable[Path], broken: list[str]) -> Iterator[Checkpoint]:
    """Read what is known of each, and note what is wrong with those that cannot be read."""
    for path in paths:
        try:
            yield read_checkpoint(path)
        except CheckpointError as error:
            if path.exists():  # and was not deleted meanwhile, by the run that writes here
                broken.append(str(error))


def best_first(checkpoints: Iterable[Checkpoint], mode: str) -> list[Checkpoint]:
    """Order those that have a metric, the best first; the later one of equals."""
    sign = 1 if mode == "min" else -1
    measured = [
        (sign * checkpoint.metric, -order, checkpoint)
        for order, checkpoint in enumerate(checkpoints)
        if checkpoint.metric is not None and not math.isnan(checkpoint.metric)
    ]
    return [checkpoint for *_, checkpoint in sorted(measured, key=operator.itemgetter(0, 1))]


def newest_whole(directory: Path) -> Checkpoint | None:
    """Give the checkpoint that was saved last and is whole."""
    return _first_whole(directory, lambda paths, broken: described(reversed(paths), broken))


def best_whole(directory: Path, mode: str) -> Checkpoint | None:
    """Give the checkpoint that has the best metric and is whole."""
    return _first_whole(directory, lambda paths, broken: best_first(described(paths, broken), mode))


def _first_whole(
    directory: Path, order: Callable[[Sequence[Path], list[str]], Iterable[Checkpoint]]
) -> Checkpoint | None:
    while True:
        broken: list[str] = []
        listed = paths_in(directory)
        for checkpoint in order(listed, broken):
            try:
                checkpoint.verify()
            except CheckpointError as error:
                if checkpoint.path.exists():
                    broken.append(str(error))
                continue
            if broken:
                reasons = "\n".join(broken)
                warnings.warn(SKIPPED.format(path=checkpoint.path, reasons=reasons), stacklevel=4)
            return checkpoint
        if listed == paths_in(directory):  # else others were saved, and these deleted, while we looked
            break
    if broken:
        raise CheckpointError(ALL_BROKEN.format(directory=directory, reasons="\n".join(broken)))
    return None


def commit(folder: Path, directory: Path, step: int) -> None:
    """Make a checkpoint of a folder that is written: give it its name, in one step of the file system."""
    number = 1 + max((int(path.name.partition("-")[0]) for path in paths_in(directory)), default=0)
    while True:
        try:
            folder.rename(directory / f"{number:06d}-step-{step}")
            return
        except OSError as error:
            # Another run has just saved this step under this number.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            number += 1


def retire(directory: Path, run: Run, kept: Callable[[list[Checkpoint]], list[Checkpoint]]) -> None:
    """Delete the checkpoints of this run and of dead ones that need not be kept.

    Parameters
    ----------
    directory : Path
    run : Run
        The run that deletes.
    kept : callable
        Chooses those that stay from a list, oldest first.
    """
    found = []
    for path in paths_in(directory):
        with contextlib.suppress(CheckpointError, OSError):
            found.append(read_checkpoint(path))
    living = {name for name in {c.run for c in found} - {run.name} if is_alive(directory, name)}
    ours = [checkpoint for checkpoint in found if checkpoint.run not in living]
    stay = {checkpoint.path for checkpoint in kept(ours)}
    for checkpoint in ours:
        if checkpoint.path not in stay:
            try:
                # First out of sight, so that no kill leaves half of it to be found.
                shutil.rmtree(checkpoint.path.rename(run.removing()))
            except FileNotFoundError:
                pass  # another run was faster
            except OSError as error:
                warnings.warn(STAYS.format(path=checkpoint.path, error=error), stacklevel=2)
