"""Pages, messages and manifests call the distribution by its name, which is not that of the package."""

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACES = (
    "*.rst",
    "CHANGELOG",
    "Makefile",
    "setup.cfg",
    ".ci/*",
    "docs/*",
    "deploy/*",
    "benchmarks/*.py",
    "tests/**/*.py",
)
PLACES += ("synk/**/*.py", "extensions/**/*.py", "demos/**/*.py")
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for pattern in PLACES
    for path in sorted(ROOT.glob(pattern))
    if path.is_file() and path.name not in (Path(__file__).name, "test_wheel.py")
}
CONFIG = configparser.ConfigParser()
CONFIG.read(ROOT / "setup.cfg")
NAME = CONFIG["metadata"]["name"]
EXTRAS = set(CONFIG["options.extras_require"])

# `pip install`, its options, and all that it is to install, over the end of a line, too.
INSTALL = re.compile(r"pip3? install((?:\s+--?[a-z-]+)*)((?:\s+(?:'[^'`]+'|\"[^\"`]+\"|[\w.>=\[\],/-]+))?)")
# The package with an extra; in a pattern of a test the bracket is escaped.
WITH_EXTRAS = re.compile(r"(?<![\w.-])(synk[\w-]*|\.|/source)\\?\[([a-z0-9,-]+)\\?\]['\"]")


def test_the_distribution_has_a_name_of_its_own():
    assert NAME == "synk-pytensor"
    assert len(TEXTS) > 500


def test_nobody_is_told_to_install_another_project():
    told = [
        f"{name}: {' '.join(found.group().split())}"
        for name, text in TEXTS.items()
        for found in [*INSTALL.finditer(text), *re.finditer(r"(?<![\w-])(synk)\\?(\[[a-z]+)", text)]
        if re.match(r"['\"]?synk(?!-pytensor)|\[", found[2].strip())
    ]
    assert told == []


def test_every_extra_that_is_named_exists():
    named = [
        (name, found[1], extra)
        for name, text in TEXTS.items()
        for found in WITH_EXTRAS.finditer(text)
        for extra in found[2].split(",")
    ]
    assert {package for _, package, _ in named} == {NAME, ".", "/source"}
    assert [(name, extra) for name, _, extra in named if extra not in EXTRAS] == []
    assert {"pymc", "mpi", "onednn", "cuda13", "demos", "plot", "tensorboard"} <= {
        extra for *_, extra in named
    }
