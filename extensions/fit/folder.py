"""The checkpoints in a folder: ``step-000000120.ckpt`` is the one after 120 steps."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import synk
from synk.extensions.checkpoint import CheckpointCorrupt, CheckpointVersion, read_values
from synk.extensions.fit.monitor import Monitor

NAME = re.compile(r"step-(\d{9,})\.ckpt")
STATE = "fit"  # the name of the plain value that holds the state of a training


def path_of(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint after so many steps."""
    return folder / f"step-{step:09d}.ckpt"


def checkpoints_in(folder: str | os.PathLike[str]) -> dict[int, Path]:
    """Return the paths of all checkpoints by step, oldest first; none if there is no such folder."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    found = {int(match[1]): Path(folder, match[0]) for match in map(NAME.fullmatch, names) if match}
    return dict(sorted(found.items()))


def latest(folder: str | os.PathLike[str]) -> Path | None:
    """Return the path of the newest checkpoint that is whole, or None.

    A `SynkWarning` names damaged ones that are newer.

    Parameters
    ----------
    folder : path-like
        As of `synk.extensions.fit.Checkpoints`.

    Returns
    -------
    Path or None

    Raises
    ------
    CheckpointVersion, OSError
        If one cannot be read for another reason, since it may be whole.

    See Also
    --------
    synk.extensions.fit.best : the best.

    Examples
    --------
    >>> from synk.extensions.fit import latest
    >>> os.makedirs("empty", exist_ok=True)
    >>> print(latest("empty"))
    None
    """
    return next((path for path in reversed(checkpoints_in(folder).values()) if is_whole(path)), None)


def best(folder: str | os.PathLike[str]) -> Path | None:
    """Return the path of the best checkpoint that is whole, by the metric of the newest one, or None.

    ``Checkpoints(folder, best=...)`` writes the scores by which they are compared.

    Parameters
    ----------
    folder : path-like
        As of `synk.extensions.fit.Checkpoints`.

    Returns
    -------
    Path or None

    See Also
    --------
    synk.extensions.fit.latest : the newest.

    Examples
    --------
    >>> from synk.extensions.fit import Checkpoints, best, fit
    >>> x, w = pt.vector("x"), pytensor.shared(np.array(0.0), name="w")
    >>> loss = ((w - x) ** 2).mean()
    >>> step = train.make_train_function(loss, [w], [x], updates.sgd, learning_rate=0.1)
    >>> callback = Checkpoints("scored", best="loss")
    >>> history = fit(step, (np.ones(8),), epochs=2, callbacks=[callback], batch_size=4, progress=False)
    >>> best("scored").name
    'step-000000004.ckpt'
    """
    scores = {path: score_of(path) for path in checkpoints_in(folder).values()}
    ranked = best_first(scores)
    return next((path for path in ranked if is_whole(path)), None)


def best_first(scores: Mapping[Path, Mapping[str, Any] | None]) -> list[Path]:
    """Return the checkpoints that have a score by the metric of the newest score, best first."""
    known = {path: score for path, score in scores.items() if score and score["value"] == score["value"]}
    if not known:
        return []
    newest = list(known.values())[-1]
    monitor = Monitor(newest["metric"], newest["mode"])
    same = [path for path in known if known[path]["metric"] == monitor.name]
    return sorted(same, key=lambda path: known[path]["value"], reverse=monitor.mode == "max")


def score_of(path: Path) -> Mapping[str, Any] | None:
    """Return the score in a checkpoint: its metric, mode and value; None if it has none or cannot be read."""
    try:
        score = read_values(path, whole=False)[STATE]["score"]
        Monitor(score["metric"], score["mode"])
        return {**score, "value": float(score["value"])}
    except (CheckpointCorrupt, CheckpointVersion, OSError, LookupError, TypeError, ValueError):
        return None


def is_whole(path: Path) -> bool:
    """Return whether all bytes of a checkpoint are as they were written; warn if not."""
    try:
        read_values(path)
    except CheckpointCorrupt as error:
        warnings.warn(f"{path} is passed over: {error}", synk.SynkWarning, stacklevel=3)
        return False
    except (CheckpointVersion, OSError) as error:
        error.add_note(f"when {path} was looked at")
        raise
    return True
