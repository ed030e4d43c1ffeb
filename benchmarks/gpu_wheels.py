"""Fill a folder with the wheels that a GPU's machine lacks, where there is a network.

    python benchmarks/gpu_wheels.py --to build/wheels --python 3.12
    python benchmarks/gpu_wheels.py --to build/wheels --lacking numba,llvmlite

    what the tests need -> all wheels for that machine -> less what it has -> the folder, sizes printed

Wheels are those of another Python and machine than this one. Imports the standard library only.
"""

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Of the extras: cuDNN itself is hundreds of megabytes, and comes with torch.
FRONT_END = "nvidia-cudnn-frontend"
OF_TESTS = ["pytest>=8", "hypothesis"]
# What a machine with CuPy and torch has anyway, by the names of the index; what else is missing is named by
# gpu_environment.py there.
PRESENT = (
    *("attrs", "hypothesis", "iniconfig", "packaging", "pluggy", "pygments", "pytest", "sortedcontainers"),
    *("filelock", "llvmlite", "numba", "numpy", "scipy", "setuptools", "threadpoolctl", "toolz"),
)
NEWEST_GLIBC = 39  # 2.39; pip takes each tag by itself
OLDEST_GLIBC = 5


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--to", type=Path, required=True, metavar="FOLDER")
    add("--python", default="3.12", help="version there")
    add("--machine", default=platform.machine(), help="its architecture")
    add("--lacking", default="", help="packages that machine lacks although most have them, with commas")
    options = parser.parse_args()
    has = set(PRESENT) - set(filter(None, options.lacking.split(",")))
    required = needed((ROOT / "setup.cfg").read_text())
    with tempfile.TemporaryDirectory() as everything:
        # All that is required is downloaded: only so pip asks what the other Python would be given.
        pip("download", *tags(options.python, options.machine), "--dest", everything, *required)
        carry(Path(everything), options.to, has)
    print(listing(options.to))


def needed(text):
    """Return the requirements of a run with cuDNN and of tests; ``text`` is that of setup.cfg."""
    config = ConfigParser()
    config.read_string(text)
    extra = config["options.extras_require"]["cudnn13"].strip().splitlines()
    front_end = [line for line in extra if line.startswith(FRONT_END)]
    return [*config["options"]["install_requires"].strip().splitlines(), *front_end, *OF_TESTS]


def tags(version, machine):
    """Return how pip is told of another Python on Linux: glibc of any age, since it matches names only."""
    glibc = [f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1)]
    platforms = [*glibc, *(f"manylinux{year}_{machine}" for year in (2014, 2010, 1))]
    told = ["--only-binary=:all:", "--implementation=cp", f"--python-version={version}"]
    return [*told, *(f"--platform={name}" for name in platforms)]


def carry(everything, folder, has):
    """Move wheels to a folder, less those of projects that the machine has, instead of others of theirs."""
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in everything.glob("*.whl"):
        if project(wheel) in has:
            continue
        for other in folder.glob("*.whl"):
            if project(other) == project(wheel):
                other.unlink()  # pip would refuse to install two
        shutil.move(wheel, folder / wheel.name)


def project(wheel):
    """Return whose wheel this is, by the name of the index; a file has it with underscores."""
    return wheel.name.partition("-")[0].lower().replace("_", "-").replace(".", "-")


def listing(folder):
    """Return the wheels of a folder with their sizes, and the sum."""
    sizes = {wheel.name: wheel.stat().st_size for wheel in sorted(folder.glob("*.whl"))}
    lines = [f"{size / 1e6:8.2f} MB  {name}" for name, size in sizes.items()]
    return "\n".join([*lines, f"{sum(sizes.values()) / 1e6:8.2f} MB  in {folder}"])


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, cwd=ROOT).returncode:
        raise SystemExit(f"pip failed: {' '.join(arguments)}")


if __name__ == "__main__":
    main()
