"""The demo that trains residual networks: its modules, and the script in a process of its own."""

import json
import re

import numpy as np
import pytest

from support.processes.demo_scripts import DEMOS, modules_beside, run, start, start_without
from support.slow import slow

TRAIN = DEMOS / "resnet" / "train_resnet.py"
SMALL = ("--depth=18", "--size=32", "--epochs=1", "--batch-size=8")


@pytest.fixture
def module():
    """Import modules of the demo as its script does."""
    yield from modules_beside(TRAIN)


@pytest.fixture
def needs_extras():
    for name in ("PIL", "rich", "matplotlib"):
        pytest.importorskip(name)


# --- the network -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth", "n_parameters"), [(18, 11_689_512), slow(34, 21_797_672), slow(50, 25_557_032)], ids=str
)
def test_networks_are_as_large_as_published(module, depth, n_parameters):
    model = module("model")
    params = model.resnet(depth, 1000, np.random.default_rng(0)).params
    assert model.count(params) == n_parameters
    model.check_size(params, depth, 1000)
    with pytest.raises(ValueError, match=rf"ResNet-{depth} of 999 classes has .* but this {n_parameters:,}"):
        model.check_size(params, depth, 999)


def test_unknown_depth_is_refused(module):
    with pytest.raises(ValueError, match="no network of 51 layers is known here; pass 18, 34, 50"):
        module("model").resnet(51, 10, np.random.default_rng(0))


def test_blocks_may_begin_as_their_shortcuts(module):
    params = module("model").resnet(18, 10, np.random.default_rng(0), zero_gamma=True).params
    gammas = [
        name for name, param in params.items() if name.endswith("gamma") and not param.get_value().any()
    ]
    assert gammas == [f"stage{stage}_{block}.branch.norm.gamma" for stage in (1, 2, 3, 4) for block in (0, 1)]


def test_pixels_are_normalised_by_channel(module):
    model = module("model")
    pixels = np.random.default_rng(0).integers(256, size=(2, 3, 4, 5), dtype=np.uint8)
    expected = (pixels / 255 - np.reshape(model.MEANS, (3, 1, 1))) / np.reshape(model.DEVIATIONS, (3, 1, 1))
    found = model.normalised(pixels)
    found = found if isinstance(found, np.ndarray) else found.eval()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_synthetic_images_show_their_class(module):
    training, validation = module("feeds").synthetic(40, 32, 4, seed=0)
    assert (len(training.labels), len(validation.labels)) == (40, 8)
    assert training.images.shape == (40, 3, 32, 32)
    assert training.images.dtype == np.uint8
    # Means of places of the patterns: noise of deviation 37 over 16 pixels, beside patterns of 37.
    coarse = [
        of_set.images.reshape(-1, 3, 8, 4, 8, 4).mean(axis=(3, 5)).reshape(len(of_set.labels), -1)
        for of_set in (training, validation)
    ]
    nearest = np.linalg.norm(coarse[1][:, None] - coarse[0], axis=2).argmin(axis=1)
    np.testing.assert_array_equal(training.labels[nearest], validation.labels)


# --- files -------------------------------------------------------------------------------------------


def write_images(folder, n_images, rng):
    """Write PNG files of several sizes, each a smooth pattern of its own."""
    pillow = pytest.importorskip("PIL.Image")
    folder.mkdir(parents=True)
    for number in range(n_images):
        coarse = pillow.fromarray(rng.integers(256, size=(5, 5, 3), dtype=np.uint8))
        coarse.resize((40 + 3 * number, 70 - 5 * number)).save(folder / f"{number}.png")


@pytest.fixture
def photographs(tmp_path):
    """A folder with two classes of six images."""
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        write_images(tmp_path / "photographs" / name, 6, rng)
    return tmp_path / "photographs"


def test_files_are_split_by_class(module, photographs):
    folders = module("folders")
    training, validation, classes = folders.find(photographs, seed=0)
    assert classes == ["cat", "dog"]
    for files, n_each in [(training, 5), (validation, 1)]:
        np.testing.assert_array_equal(files.labels, n_each * [0] + n_each * [1])
        of_paths = [classes.index(path.split("/")[-2]) for path in files.paths]
        np.testing.assert_array_equal(files.labels, of_paths)
    assert len({*training.paths, *validation.paths}) == 12
    others = {folders.find(photographs, seed)[1].paths for seed in range(8)}
    assert len(others) > 1


def test_folders_of_validation_stand_beside_those_of_training(module, photographs, tmp_path):
    top = tmp_path / "both"
    top.mkdir()
    photographs.rename(top / "train")
    write_images(top / "val" / "cat", 1, np.random.default_rng(1))
    with pytest.raises(SystemExit, match="different classes: dog is in one of them only"):
        module("folders").find(top, seed=0)
    write_images(top / "val" / "dog", 2, np.random.default_rng(2))
    training, validation, _ = module("folders").find(top, seed=0)
    assert (len(training.paths), len(validation.paths)) == (12, 3)
    np.testing.assert_array_equal(validation.labels, [0, 1, 1])


def test_all_ranks_together_read_what_one_process_reads(module, ranks, photographs):
    import pytensor.tensor as pt

    import synk

    images, folders = module("images"), module("folders")
    files, _, _ = folders.find(photographs, seed=0)
    read = images.ReadImages(files.paths, 16, seed=3)
    ranks(2)
    numbers, epoch = pt.lvector("numbers"), pt.lscalar("epoch")
    function = synk.function([numbers], (read(numbers, epoch), "gather"), bcast_inputs=[epoch])
    order = np.array([7, 0, 3, 3, 9, 1, 2])  # an odd number: four and three
    seen = {of_epoch: function(order, of_epoch) for of_epoch in (0, 1)}
    for of_epoch, pixels in seen.items():
        assert pixels.dtype == np.uint8
        alone = [read.read(number, of_epoch).transpose(2, 0, 1) for number in order]
        np.testing.assert_array_equal(pixels, alone)
    assert not (seen[0] == seen[1]).all(axis=(1, 2, 3)).any()  # other parts in each epoch


@pytest.mark.slow
def test_centre_is_the_same_in_every_epoch(module, tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    pixels = np.zeros((64, 128, 3), np.uint8)
    pixels[4:60, 36:92] = 200  # seven eighths of the shorter side, in the middle
    pillow.fromarray(pixels).save(tmp_path / "image.png")
    read = module("images").ReadImages((str(tmp_path / "image.png"),), 56)
    np.testing.assert_array_equal(read([0]).eval(), np.full((1, 3, 56, 56), 200))
    np.testing.assert_array_equal(read.read(0, epoch=5), read.read(0, epoch=0))


def test_random_parts_lie_inside_and_are_flipped_half_the_time(module):
    images = module("images")
    read = images.ReadImages(("",), 8, seed=0)
    parts = [read.part(100, 50, number=0, epoch=epoch) for epoch in range(400)]
    boxes = np.array([box for box, _ in parts])
    assert boxes.min() >= 0
    assert boxes[:, 2].max() <= 100
    assert boxes[:, 3].max() <= 50
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) / 5000
    assert 0.079 < areas.min() < 0.12
    assert 0.6 < areas.max() <= 1
    assert 150 < sum(flip for _, flip in parts) < 250
    # Nothing of the usual form fits in a ribbon: it is the square amid it.
    assert images.random_part(1000, 10, np.random.default_rng(0)) == (495, 0, 505, 10)


def test_flipped_image_is_the_mirror_of_the_other(module, tmp_path, monkeypatch):
    pillow = pytest.importorskip("PIL.Image")
    path = tmp_path / "image.png"
    pillow.fromarray(np.random.default_rng(0).integers(256, size=(9, 9, 3), dtype=np.uint8)).save(path)
    read = module("images").ReadImages((str(path),), 9, seed=0)
    whole = (0, 0, 9, 9)
    seen = []
    for flip in (False, True):
        monkeypatch.setattr(read, "part", lambda *_, flip=flip: (whole, flip))
        seen.append(read.read(0, 0))
    np.testing.assert_array_equal(seen[1], seen[0][:, ::-1])
    np.testing.assert_array_equal(seen[0], np.asarray(pillow.open(path)))


def test_numbers_must_be_integers(module):
    with pytest.raises(TypeError, match="float64; pass integers: numbers of files"):
        module("images").ReadImages(("a.png",), 8)(np.zeros(1))


# --- the script --------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_small_network_is_trained(n_ranks, tmp_path, needs_extras):
    losses = tmp_path / "losses.json"
    options = ["--ranks", n_ranks, "--synthetic=40", "--classes=4", "--losses", losses]
    lines = run(TRAIN, *SMALL, *options).splitlines()
    assert (
        lines[0]
        == f"ResNet-18 of 11,178,564 parameters, 40 images, {n_ranks} rank{'s'[: n_ranks - 1]}, momentum"
    )
    assert re.fullmatch(r"test accuracy \d+\.\d\d %", lines[-1])
    assert np.isfinite([*json.loads(losses.read_text()).values()]).all()


@pytest.mark.slow
def test_network_is_trained_on_photographs(photographs, tmp_path, needs_extras):
    curve, losses = tmp_path / "curve.png", tmp_path / "losses.json"
    options = ["--image-dir", photographs, "--plot", curve, "--losses", losses]
    lines = run(TRAIN, "--ranks=2", *SMALL, *options).splitlines()
    assert re.fullmatch(r"ResNet-18 of 11,\d{3},\d{3} parameters, 10 images, 2 ranks, momentum", lines[0])
    assert re.fullmatch(r"test accuracy \d+\.\d\d %", lines[-1])
    assert np.isfinite([*json.loads(losses.read_text()).values()]).all()
    assert curve.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_broken_file_is_named(module, ranks, photographs):
    import pytensor.tensor as pt

    import synk

    (photographs / "dog" / "3.png").write_bytes(b"no image")
    files, _ = module("folders").in_classes(photographs)
    read = module("images").ReadImages(files.paths, 16, seed=3)
    ranks(2)
    numbers = pt.lvector("numbers")
    function = synk.function([numbers], (read(numbers), "gather"))
    with pytest.raises(ValueError, match=r"\S+/dog/3\.png cannot be read as an image: cannot identify"):
        function(np.arange(len(files.paths)))


@pytest.mark.slow
@pytest.mark.parametrize("inside", [(), ("empty class",)], ids=["nothing", "an empty class"])
def test_folder_without_images_is_refused(inside, tmp_path, needs_extras):
    for name in inside:
        (tmp_path / name).mkdir()
    done = start(TRAIN, "--ranks=1", *SMALL, "--image-dir", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{tmp_path} has no folder with images (.jpeg, .jpg, .png) in it")


@pytest.mark.slow
def test_missing_pillow_is_named_with_the_extra(tmp_path, needs_extras):
    done = start_without("PIL", TRAIN, "--ranks=2", *SMALL, "--image-dir", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "PIL is not installed. Use pip install 'synk-pytensor[demos]'.\n"


@pytest.mark.soak
def test_network_learns_noise_by_heart(module, ranks):
    """Labels that have nothing to do with the images: only all layers together can tell them apart."""
    import pytensor.tensor as pt

    import synk
    from synk.extensions import batches, schedules, train, updates

    model = module("model")
    ranks(2)
    rng = np.random.default_rng(0)
    pixels, labels = pt.tensor("pixels", shape=(None, 3, 64, 64), dtype="uint8"), pt.lvector("labels")
    net = model.build(model.normalised(pixels), labels, depth=18, n_classes=10, seed=0)
    n_epochs, done = 14, schedules.counter()
    step = train.make_train_function(
        net.train_loss,
        net.params.values(),
        [pixels, labels],
        schedules.counting(updates.momentum, done),
        updates=net.updates,
        # The last steps change little, so that the running statistics come up with the weights.
        learning_rate=schedules.cosine(done, 0.02, 8 * n_epochs, warm_up=8),
    )
    evaluate = synk.function([pixels, labels], [net.loss, net.accuracy])
    images = synk.data(rng.integers(256, size=(256, 3, 64, 64), dtype=np.uint8))
    classes = synk.data(rng.integers(10, size=256))
    for epoch in range(n_epochs):
        for rows in batches(256, 32, seed=(0, epoch)):
            step(images, classes, batch=rows)
    loss, accuracy = evaluate(images, classes, num_slices=4)
    assert accuracy > 0.99
    assert loss < 0.1
