"""All but gpu/speedups works without it, and does not read it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

TRAINING = """
import sys
import numpy as np
import pytensor
import pytensor.tensor as pt
import synk
from synk.extensions import train, updates

synk.fork(2, device="cpu")
x, y = pt.matrix("x"), pt.vector("y")
w = pytensor.shared(np.zeros(3), name="w")
step = train.make_train_function(((x @ w - y) ** 2).mean(), [w], [x, y], updates.sgd, learning_rate=0.1)
rows = np.random.default_rng(0).normal(size=(11, 3))
losses = [float(step(rows, rows.sum(axis=1), batch=9)) for _ in range(30)]
synk.close()
assert losses[-1] < 0.1 * losses[0], losses
"""
NOT_READ = "assert [name for name in sys.modules if name.startswith('synk.gpu.speedups')] == []\n"
GONE = """
from pathlib import Path

folder = Path(synk.__file__).parent
assert str(folder).startswith(sys.argv[1]) and not (folder / "gpu" / "speedups").exists()
"""


def run(script, folder, *arguments):
    """Run a script of its own, which imports synk from a folder."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    ended = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr


def test_training_on_cores_reads_nothing_of_it():
    run(TRAINING + NOT_READ, ROOT)


def test_all_else_works_where_it_is_deleted(tmp_path):
    shutil.copytree(ROOT / "synk", tmp_path / "synk", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(tmp_path / "synk" / "gpu" / "speedups")
    run(TRAINING + GONE, tmp_path, str(tmp_path))
