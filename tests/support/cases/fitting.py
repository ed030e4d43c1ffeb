"""A small training for tests of the loop: a linear model of float64, with noise where it is asked for.

Commands of it are run in children, which may be killed.
"""

import json
import os
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk
from synk.extensions import train, updates
from synk.extensions.fit import Callback, Checkpoints, fit

N_ROWS = 47  # no multiple of batches or ranks


def make(noise=False, rule=updates.adam, learning_rate=0.05, outputs=None, **options):
    """Return a step, data, and a function for validation with its data; synk.fork comes before."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(N_ROWS + 11, 4))
    targets = rows @ np.arange(4.0) + 0.1 * rng.normal(size=len(rows))
    x, y = pt.dmatrix("x"), pt.dvector("y")
    w = pytensor.shared(np.zeros(4), name="w")
    error = x @ w - y
    loss, of_train, drawn = (error**2).mean(), (error**2).mean(), []
    if noise:
        state = pytensor.shared(np.random.default_rng(5), name="state")
        next_state, draws = pt.random.normal(size=(x.shape[0],), rng=state, return_next_rng=True)
        of_train, drawn = ((error + 0.1 * draws) ** 2).mean(), [(state, next_state)]
    step = train.make_train_function(
        of_train, [w], [x, y], rule, learning_rate=learning_rate, outputs=outputs, updates=drawn, **options
    )
    evaluate = synk.function([x, y], [loss, abs(error).max()])
    return SimpleNamespace(
        w=w,
        step=step,
        data=(rows[:N_ROWS], targets[:N_ROWS]),
        evaluate=evaluate,
        validation=(evaluate, (rows[N_ROWS:], targets[N_ROWS:])),
        start={variable: variable.get_value() for variable in step.state},
    )


def anew(case):
    """Return a case as it was made, whatever it has trained: that spares compiling another."""
    for variable, value in case.start.items():
        if isinstance(value, np.random.Generator):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", synk.SynkWarning)  # that it is set on one rank: for a moment
                variable.set_value(value)
            synk.broadcast(variable)
        else:
            synk.broadcast(variable, value)
    return case


def fitted(case, *callbacks, epochs=3, **options):
    """Train a case for a few epochs, without a bar; return the history."""
    options = {"batch_size": 10, "validation": case.validation, "progress": False, **options}
    return fit(case.step, options.pop("data", case.data), epochs=epochs, callbacks=callbacks, **options)


class Pretends(Callback):
    """Gives epochs values of validation in place of their own."""

    def __init__(self, *values):
        self.values = values

    def on_epoch_end(self, training):
        training.metrics["val_loss"] = self.values[training.epoch]


def numbers(history):
    """Return the metrics of a history, without the times."""
    times = ("seconds", "rows_per_second")
    return [{name: value for name, value in epoch.items() if name not in times} for epoch in history.epochs]


def values(case):
    """Return the values that training goes on from, of all ranks, in a form that can be compared."""
    found = {}
    for rank in range(synk.n_ranks()):
        for variable in case.step.state:
            value = synk.get_value(rank, variable)
            plain = value.bit_generator.state if isinstance(value, np.random.Generator) else value.tolist()
            found[rank, variable.name] = plain
    return found


def command(folder, epochs, callbacks=(), **options):
    """Train or resume, as a script run from a command line, and write the results to a file at the end."""
    synk.fork(2)
    case = make(noise=True)
    history = fit(
        case.step,
        case.data,
        epochs=epochs,
        batch_size=8,
        validation=case.validation,
        callbacks=[Checkpoints(folder, every=1, best="val_loss"), *callbacks],
        resume=folder,
        progress=False,
        **options,
    )
    result = {"history": numbers(history), "values": repr(values(case))}
    synk.close()
    part = Path(folder) / "result.part"
    part.write_text(json.dumps(result))
    part.rename(Path(folder) / "result.json")  # whole, or not there


def result_in(folder):
    """Return the results that the command has written; None if it has not ended."""
    path = Path(folder) / "result.json"
    return json.loads(path.read_text()) if path.exists() else None


def start(do, *arguments, **options):
    """Do something in a child, which leads a group of processes and exits as scripts do; return its pid."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)
        warnings.simplefilter("default")
        do(*arguments, **options)
        os._exit(0)
    except SystemExit as left:
        synk.close()
        os._exit(left.code)
    finally:
        os._exit(1)


def ended(child):
    """Wait for a child; return its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
