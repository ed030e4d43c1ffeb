"""Make an environment for tests on a GPU from what a machine has: its CuPy and torch stay where they are.

    python gpu_environment.py FOLDER                  what is missing comes from the index
    python gpu_environment.py FOLDER --wheels WHEELS  ... or from a folder, without a network

The folder becomes a virtual environment that sees all packages of the Python which runs this, be that a
virtual environment itself; synk is installed in it, editable.
"""

import argparse
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = (
    "numpy",
    "scipy",
    "pytensor",
    "posix_ipc",
    "threadpoolctl",
    "pytest",
    "hypothesis",
    "synk.extensions",
)
OF_TESTS = ("pytest>=8", "hypothesis")
# What tests and figures do without, skipping what is about it; with the reason, where that is not plain.
WANTED = ("cupy", "torch", "ml_dtypes")
WITHOUT = """
import sys
from importlib.util import find_spec
sys.path[:] = [place for place in sys.path if place]
from synk.gpu.kernels import cudnn
for name in sys.argv[1:]:
    if find_spec(name) is None:
        print(f"is without {name}")
if not cudnn.available():
    print(f"is without cuDNN: {cudnn.reason()}")
"""
CHECK = """
import importlib, sys
sys.path[:] = [place for place in sys.path if place]  # not the folder that this runs in
missing = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        missing[name] = error
print("\\n".join(f"{name}: {error}" for name, error in missing.items()))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheels", type=Path, help="a folder; all in it are installed, and nothing else")
    options = parser.parse_args()
    # Without pip: this Python's own installs there, and some Pythons bring none for others.
    venv.create(options.folder, system_site_packages=True, with_pip=False, clear=True)
    python = options.folder.absolute() / "bin" / "python"
    inherit(python)
    install(python, options.wheels)
    missing = ask(python, "-c", CHECK, *NEEDED, "synk.extensions").strip()
    if missing:
        raise SystemExit(
            f"what the tests need is missing in {options.folder}:\n{missing}\n{remedy(options.wheels)}"
        )
    for line in ask(python, "-c", WITHOUT, *WANTED).splitlines():
        print(f"{options.folder} {line}", flush=True)


def inherit(python):
    """Make the packages of this Python visible in the environment, even if it is an environment itself."""
    places = [place for place in sys.path if Path(place).name in ("site-packages", "dist-packages")]
    own = Path(ask(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    lines = [f"import site; site.addsitedir({place!r})" for place in places]
    # CUDA's libraries that came as packages are looked for where `site.getsitepackages` says, only there.
    lines.append(f"import site; site.PREFIXES.append({sys.prefix!r})")
    (own / "packages_of_the_parent.pth").write_text("\n".join([*lines, ""]))


def install(python, wheels):
    """Install what is missing, and synk."""
    if wheels is None:
        pip(python, "install", "--editable", str(ROOT), *OF_TESTS)
        return
    found = sorted(map(str, wheels.glob("*.whl")))
    if not found:
        raise SystemExit(f"there are no wheels in {wheels}; {remedy(wheels)}")
    # No dependencies: what the machine has may be newer than what a wheel would ask for, and must stay.
    pip(python, "install", "--no-index", "--no-deps", *found)
    pip(python, "install", "--no-index", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))


def remedy(wheels):
    if wheels is None:
        return "pip could not bring it; without a network name a folder of wheels: make gpu-test WHEELS=..."
    return (
        "fill build/wheels where there is a network, for this Python and with what it lacks: "
        f"make gpu-wheels FOR={sys.version_info.major}.{sys.version_info.minor}; "
        "python benchmarks/gpu_wheels.py --lacking NAME,NAME ..."
    )


def pip(python, *arguments):
    command = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*command, *arguments], cwd=ROOT).returncode:
        raise SystemExit(f"pip failed: {' '.join(arguments)}")


def ask(python, *arguments):
    ended = subprocess.run([str(python), *arguments], capture_output=True, text=True, cwd=python.parent)
    if ended.returncode:
        raise SystemExit(f"{python} fails:\n{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    main()
