"""Acts in which a rank dies or memory runs out; they return the error that the script gets."""

import gc
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytensor.tensor as pt

import synk
from support.gpu.acts import act, shared


@act
def killed(fork, n_ranks=2, n_items=4_000_000, after=0.7):
    """Kill the last rank while ranks all-reduce a device vector; return the time until the error."""
    fork(n_ranks)
    v = shared(np.ones(n_items), "v", "float32")
    touch = synk.function([], updates=[(v, v * 1)])
    step = synk.sequence(touch, *[(synk.all_reduce, v, "avg")] * 20)
    step()
    victim, struck = synk.pids()[-1], []

    def strike():
        time.sleep(after)
        struck.append(time.monotonic())
        os.kill(victim, signal.SIGKILL)

    thread = threading.Thread(target=strike)
    thread.start()
    seen = None
    try:
        while time.monotonic() < (struck or [time.monotonic()])[0] + 30:
            step()
    except synk.WorkerDied as error:
        seen = {"seconds": time.monotonic() - struck[0], "said": str(error)}
    thread.join()
    start = time.monotonic()
    synk.close()
    return {"seen": seen, "closing": time.monotonic() - start, "left": left_over()}


@act
def reborn(fork, n_ranks=2, n_steps=6):
    """Train twice in one script, the second time with a death and a restart in the middle."""
    x, runs, took = pt.matrix("x", dtype="float32"), [], []
    rows = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
    for death in (None, n_steps // 2):
        fork(n_ranks)
        w, flat = shared(np.zeros(8), "w", "float32"), shared(np.zeros(8), "flat", "float32")
        loss = ((x @ w - x.sum(1)) ** 2).mean()
        gradient = synk.function([x], loss, updates=[(flat, pt.grad(loss, w))])
        step = synk.sequence(
            gradient, (synk.all_reduce, flat), synk.function([], updates=[(w, w - np.float32(0.1) * flat)])
        )
        data, losses = synk.data(rows), []
        for number in range(n_steps):
            if number == death:
                synk.commit()
                os.kill(synk.pids()[-1], signal.SIGKILL)
                struck = time.monotonic()
                try:
                    while time.monotonic() < struck + 30:
                        step(data)
                except synk.WorkerDied:
                    took.append(time.monotonic() - struck)
                began = time.monotonic()
                synk.restart()
                took.append(time.monotonic() - began)
            losses.append(float(step(data)))
        runs.append([losses, [synk.get_value(rank, w).tolist() for rank in range(n_ranks)]])
        synk.close()
    return {"runs": runs, "told": took[0], "restarted": took[1], "left": left_over()}


def left_over():
    """Return the names of segments of this process, and its children."""
    synk.run.session.current.dismiss_fork_server()  # it lives on for the next run
    segments = [name for name in os.listdir("/dev/shm") if str(os.getpid()) in name]
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [*segments, *children]


@act
def out_of_memory(fork, n_ranks=1, memory_limit=0.02):
    """Ask for more than the limit, and then for less."""
    fork(n_ranks, memory_limit=memory_limit)
    import cupy

    free, total = cupy.cuda.runtime.memGetInfo()
    n, limit = pt.lscalar("n"), int(total * memory_limit)
    one = shared(1.0, "one", "float32")
    fill = synk.function([], pt.cumsum(pt.alloc(one, n))[-1], bcast_inputs=[n])
    error = None
    try:
        fill(np.int64(limit // 2))  # twice the limit
    except Exception as raised:
        error = type(raised).__name__, str(raised)[:200]
    return {"error": error, "after": float(fill(np.int64(1000))), "limit": limit, "free": free}


@act
def steady(fork, n_ranks, calls=200):
    """Return the bytes of rank 0's arrays on the device after a few calls, and after many more."""
    fork(n_ranks)
    x, w = pt.fmatrix("x"), shared(np.ones((256, 256)), "w", "float32")
    y = pt.tanh(x @ w)
    rate = np.float32(0.01)  # a number of Python would make float64 of it
    f = synk.function([x], [y.mean(), (y, "gather")], updates=[(w, w - rate * pt.grad(y.mean(), w))])
    rng = np.random.default_rng(0)

    def call(number):
        f(rng.random((rng.integers(1, 200), 256), "float32"), num_slices=1 + number % 3)
        synk.all_reduce(w, "avg")

    def used():
        import cupy

        gc.collect()
        return cupy.cuda.get_allocator().__self__.used_bytes()  # of this rank's pool

    for number in range(20):
        call(number)
    f(rng.random((200, 256), "float32"))
    before = used()
    for number in range(calls):
        call(number)
    return {"before": before, "after": used()}
