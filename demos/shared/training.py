"""Train as the command line asks for it: saved, recorded, drawn.

add_options -> parse_args -> train: fit with callbacks, in a timeline -> files, results
"""

import argparse
import json
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from extras import need
from report import ACCURACY, Report, Score, finish

import synk
from synk.extensions.fit import Callback, Checkpoints, TensorBoard, fit


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of what is written beside a training."""
    add = parser.add_argument
    add("--checkpoints", metavar="DIR", help="save the training there, and go on from what is there")
    add("--tensorboard", metavar="DIR", help="write event files for TensorBoard there")
    add("--timeline", metavar="JSON", help="write what all ranks did to this file, for ui.perfetto.dev")
    add("--plot", metavar="PNG", help="draw the learning curves to this file")
    add("--losses", metavar="JSON", help="write the losses of all epochs to this file")


def check_options(options: argparse.Namespace) -> None:
    """Exit if something is not installed: better missed now than after the training."""
    if options.plot:
        need("matplotlib.figure")
    if options.tensorboard:
        need("tensorboard.summary.writer.event_file_writer")


def train(
    options: argparse.Namespace,
    title: str,
    *what: Any,
    callbacks: Any = (),
    score: Score = ACCURACY,
    **how: Any,
) -> None:
    """Train by `fit`, close the run, and write what the options ask for; exit if ^C has stopped it."""
    with synk.timeline(options.timeline) if options.timeline else nullcontext() as timeline:
        history = fit(
            *what,
            epochs=options.epochs,
            seed=options.seed,
            metrics=["loss", score.metric],
            callbacks=[Report(title), *callbacks, *writers(options, score)],
            resume=options.checkpoints,
            recover=3,
            # A scheduler's signals: what is saved is what the same command goes on from.
            stop_on=[signal.SIGTERM, signal.SIGUSR1] if options.checkpoints else [],
            **how,
        )
    synk.close()
    if timeline:
        print(timeline.summary())
    if history.interrupted:
        sys.exit(130)  # 128 + SIGINT, as of a shell
    if options.plot:
        history.plot(options.plot, title)
    if options.losses:
        losses = {"train": history["loss"], "test": history["val_loss"]}
        Path(options.losses).write_text(json.dumps(losses))
    finish(history, score)


def writers(options: argparse.Namespace, score: Score) -> list[Callback]:
    """Return the callbacks that write files."""
    found: list[Callback] = []
    if options.checkpoints:
        # By the whole validation set, on all ranks.
        found.append(Checkpoints(options.checkpoints, best=f"val_{score.metric}", mode=score.mode))
    if options.tensorboard:
        found.append(TensorBoard(options.tensorboard))
    return found
