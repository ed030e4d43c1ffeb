"""The demo that trains a U-Net: its modules, and the script in a process of its own."""

import json
import re
import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode

from support.processes.demo_scripts import DEMOS, modules_beside, start
from support.slow import slow

TRAIN = DEMOS / "unet" / "train_unet.py"
SMALL = ("--base=2", "--depth=2", "--size=16", "--batch-size=4", "--synthetic=18", "--rate=1e-3")


@pytest.fixture
def module():
    """Import modules of the demo as its script does."""
    for name in ("rich", "matplotlib"):
        pytest.importorskip(name)
    yield from modules_beside(TRAIN)


# --- the network -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "depth", "bottom", "n_parameters"),
    [(16, 3, 128, 482_449), slow(32, 4, 512, 7_762_465)],
    ids=["small", "full"],
)
def test_networks_are_as_large_as_counted(module, base, depth, bottom, n_parameters):
    """By hand: two convolutions of 3 x 3 and two norms a block, one of 2 x 2 with biases on the way up."""

    def block(n_in, n):
        return 9 * n * (n_in + n) + 4 * n

    widths = [base * 2**level for level in range(depth + 1)]
    counted = sum(block(n_in, n) for n_in, n in zip([1, *widths[:-1]], widths, strict=True))
    counted += sum(block(2 * n, n) + 4 * 2 * n * n + n for n in widths[:-1]) + base + 1
    made = module("model").unet(base, depth, np.random.default_rng(0), norm="all", dtype="float32")
    assert made.n_parameters == counted == n_parameters
    assert max(param.type.shape[0] for param in made.params.values()) == widths[-1] == bottom


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("n_ranks", "norm"), [(2, "all"), (3, "all"), (1, "all"), (3, "group")])
def test_a_step_is_that_of_one_process(module, ranks, n_ranks, norm, dtype):
    """Dice of the batch, and statistics of all ranks: also of one image, which leaves ranks without any."""
    from synk.extensions import train, updates

    model, pairs = module("model"), module("pairs")
    ranks(n_ranks)
    data = pairs.ellipses(7, 8, np.random.default_rng(0))
    x, y = (
        pt.tensor(name, shape=(None, 1, 8, 8), dtype=kind) for name, kind in (("x", dtype), ("y", "uint8"))
    )
    spread, alone = (model.build(x, y, base=2, depth=1, seed=0, norm=norm) for _ in range(2))
    params = list(alone.params.values())
    gradients = pytensor.grad(alone.train_loss, params)
    descent = [(p, p - np.asarray(0.1, dtype) * g) for p, g in zip(params, gradients, strict=True)]
    step_alone = pytensor.function([x, y], alone.train_loss, updates=descent, mode=Mode("py", None))
    options = {"updates": spread.updates, "learning_rate": 0.1}
    step = train.make_train_function(spread.train_loss, spread.params, [x, y], updates.sgd, **options)
    tolerance = 1e-12 if dtype == "float64" else 1e-6
    for n_rows in (7, 5, 1):
        rows = data.images[:n_rows].astype(dtype), data.masks[:n_rows]
        np.testing.assert_allclose(step(*rows), step_alone(*rows), rtol=tolerance, atol=tolerance)


# --- images and masks --------------------------------------------------------------------------------


def test_ellipses_are_brighter_than_what_is_around(module):
    made = module("pairs").ellipses(20, 32, np.random.default_rng(0))
    assert made.images.shape == made.masks.shape == (20, 1, 32, 32)
    assert made.images.dtype == np.float32
    np.testing.assert_allclose(made.images.mean((1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(made.images.std((1, 2, 3)), 1, rtol=1e-5)
    shares = made.masks.mean((1, 2, 3))
    assert 0.02 < shares.min() < shares.max() < 0.3
    for image, mask in zip(made.images, made.masks, strict=True):
        assert image[mask == 1].mean() > image[mask == 0].mean()


def test_an_image_without_contrast_becomes_zeros(module):
    assert not module("pairs").normalised(np.full((2, 1, 4, 4), 7.0)).any()


def write(path, size=(12, 9), value=200):
    pillow = pytest.importorskip("PIL.Image")
    path.parent.mkdir(exist_ok=True)
    pixels = np.zeros(size[::-1], np.uint8)
    pixels[: size[1] // 3] = value
    pillow.fromarray(pixels).save(path)


def test_files_pair_by_their_names(module, tmp_path):
    pairs = module("pairs")
    for name in ("a", "b", "c"):
        write(tmp_path / "images" / f"{name}.png")
        write(tmp_path / "masks" / f"{name}{'_mask' * (name == 'b')}.bmp")
    (tmp_path / "masks" / "notes.txt").write_text("not an image")
    files = pairs.find(tmp_path / "images", tmp_path / "masks")
    assert [(one.name, other.name) for one, other in files] == [
        ("a.png", "a.bmp"), ("b.png", "b_mask.bmp"), ("c.png", "c.bmp"),
    ]  # fmt: skip
    made = pairs.read(files, 6)
    np.testing.assert_array_equal(made.masks[:, 0], np.broadcast_to([[1]] * 2 + [[0]] * 4, (3, 6, 6)))
    known, unknown = pairs.split(made, seed=0)
    assert (len(known.masks), len(unknown.images)) == (2, 1)


def test_both_may_lie_in_one_folder(module, tmp_path):
    for name in ("1_1", "1_1_mask", "1_2", "1_2_mask"):
        write(tmp_path / "all" / f"{name}.tif")
    files = module("pairs").find(tmp_path / "all", tmp_path / "all")
    assert [(one.name, other.name) for one, other in files] == [
        ("1_1.tif", "1_1_mask.tif"), ("1_2.tif", "1_2_mask.tif"),
    ]  # fmt: skip


def test_files_that_do_not_pair_are_named_one_by_one(module, tmp_path):
    images, masks = tmp_path / "images", tmp_path / "masks"
    for path in (images / "a.png", images / "b.png", images / "c.png", masks / "a.png", masks / "d.png"):
        write(path)
    with pytest.raises(SystemExit) as refused:
        module("pairs").find(images, masks)
    assert str(refused.value).splitlines() == [
        f"{images}/b.png has no mask in {masks}",
        f"{images}/c.png has no mask in {masks}",
        f"{masks}/d.png has no image in {images}",
        "3 files do not pair: add or remove them",
    ]


def test_what_cannot_be_read_is_named(module, tmp_path):
    pairs, images, masks = module("pairs"), tmp_path / "images", tmp_path / "masks"
    with pytest.raises(SystemExit, match=r"--images \S+/images is not a folder"):
        pairs.find(images, masks)
    write(images / "a.png")
    write(masks / "a.png")
    with pytest.raises(SystemExit, match="has 1 images .*: two are needed"):
        pairs.find(images, masks)
    write(masks / "a.bmp")
    with pytest.raises(SystemExit, match="are both called a: rename one"):
        pairs.find(images, masks)
    (masks / "a.bmp").unlink()
    write(masks / "a.png", size=(9, 12))
    files = [(images / "a.png", masks / "a.png")]
    with pytest.raises(SystemExit, match=r"a.png is \(12, 9\) pixels large, but its mask .* \(9, 12\)"):
        pairs.read(files, 8)
    write(masks / "a.png", value=1)
    with pytest.raises(SystemExit, match="no mask has a pixel above 127: multiply masks of zeros and ones"):
        pairs.read(files, 8)
    (masks / "a.png").write_bytes(b"no image")
    with pytest.raises(SystemExit, match=r"masks/a.png cannot be read as an image"):
        pairs.read(files, 8)


@pytest.mark.leaks("descriptors", reason="matplotlib keeps the files of its fonts open")
def test_a_picture_is_drawn(module, tmp_path):
    images = np.random.default_rng(0).normal(size=(2, 1, 8, 8))
    masks = np.zeros_like(images)
    path = tmp_path / "picture.png"
    module("picture").draw(path, images, masks, np.linspace(0, 1, 128).reshape(images.shape))
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


# --- the script --------------------------------------------------------------------------------------


def ended(*options):
    """Run the script and return its lines. On a busy machine ranks warn that one of them compiles."""
    done = subprocess.run([sys.executable, TRAIN, *options], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_training_goes_on_with_other_ranks_by_the_same_command(module, tmp_path):
    """The last epoch is taken back; on three ranks it comes again as it was on two."""
    losses, picture, folder = tmp_path / "losses.json", tmp_path / "new" / "picture.png", tmp_path / "run"
    files = ["--losses", losses, "--checkpoints", folder, "--picture", picture]
    options = ["--epochs=3", "--replicas=2", *files]
    lines = ended("--ranks=2", *SMALL, *options)
    assert lines[0] == "U-Net of 1,923 parameters, 18 images of 16 x 16, 2 ranks, batches of 8"
    assert re.fullmatch(r"validation Dice 0\.\d{4}", lines[-1])
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    before = json.loads(losses.read_text())
    (folder / "step-000000009.ckpt").unlink()
    lines = ended("--ranks=3", *SMALL, *options)
    assert "going on after 6 steps" in lines
    after = json.loads(losses.read_text())
    for part in ("train", "test"):
        np.testing.assert_allclose(after[part], before[part], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--size=20", "--depth=3"], "--size 20 is no multiple of 8, for --depth 3"),
        (["--images=photographs"], "--images and --masks belong together"),
        (["--replicas=0"], "--replicas 0 is less than 1"),
    ],
)
def test_options_that_do_not_fit_are_named(module, options, said):
    done = start(TRAIN, *options)
    assert done.returncode == 2
    assert said in done.stderr
