"""Train a perceptron on random images, as a user's script with annotations would."""

import sys
from pathlib import Path
from typing import assert_type

import numpy as np
import pytensor.tensor as pt

import synk
from synk import ops
from synk.extensions import checkpoint, layers, train, updates
from synk.extensions.fit import Callback, Checkpoints, EarlyStopping, History, Training, best, fit


class Watch(Callback):
    """Remembers the losses that it has seen."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_epoch_end(self, training: Training) -> None:
        self.losses.append(training.metrics["loss"])
        assert_type(training.history, History)


def main(folder: Path) -> float:
    assert_type(synk.fork(2), int)
    rng = np.random.default_rng(0)
    images, labels = rng.random((200, 16), dtype=np.float32), rng.integers(0, 10, 200)
    model = layers.Sequential(
        hidden=layers.Dense(16, 20, rng=rng),
        relu=layers.ReLU(),
        dropout=layers.Dropout(0.3, seed=2),
        head=layers.Dense(20, 10, rng=rng),
    )
    x, y = pt.fmatrix("x"), pt.lvector("y")
    logits, advance = model.training(x)
    loss = ops.softmax_cross_entropy(logits, y).mean()
    params = list(model.params.values())
    rule = updates.clipped(updates.adam, max_norm=1.0)
    step = train.make_train_function(loss, params, [x, y], rule, updates=advance, learning_rate=0.01)
    tested = model(x)
    right = pt.mean(pt.eq(tested.argmax(axis=1), y))
    test = synk.function([x, y], [ops.softmax_cross_entropy(tested, y).mean(), (right, "avg")])
    assert_type(step, synk.Function)
    assert_type(test, synk.Function)

    watch = Watch()
    history = fit(
        step,
        (images, labels),
        epochs=2,
        batch_size=100,
        validation=(test, {"x": images, "y": labels}, ["loss", "accuracy"]),
        callbacks=[Checkpoints(folder, best="val_loss"), EarlyStopping("val_loss", patience=2), watch],
        resume=folder,
        progress=False,
    )
    assert_type(history, History)
    assert watch.losses == history["loss"]
    found = best(folder)
    assert_type(found, Path | None)
    if found is not None:
        checkpoint.load(found, params, strict=False)

    data = synk.data(images, name="images")
    assert_type(data, synk.Data)
    assert_type(data.shape, tuple[int, ...])
    classify = synk.function([x], tested.argmax(axis=1), name="classify")
    classes: np.ndarray = classify(data, batch=slice(0, 100), num_slices=2)
    assert classes.shape == (100,)
    print(classify.profile(data, n_calls=1))
    with synk.timeline(folder / "run.json") as timeline:
        classify(data)
    print(timeline.summary())
    synk.close()
    return float(max(history["val_accuracy"]))


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
