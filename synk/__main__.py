"""The command line: ``python -m synk`` with ``doctor``, ``bench``, ``cache`` or ``run``.

    arguments -> main -> the main() of one module, imported only when it is chosen -> exit status

If synk cannot be imported, because PyTensor is missing, say, run its folder instead: ``python path/to/synk
doctor`` begins its checks without importing the rest of synk.
"""

from __future__ import annotations

import argparse
import sys
import types
from importlib import import_module
from pathlib import Path

COMMANDS = {
    "doctor": "check this machine, and say what to do about each finding",
    "bench": "measure collectives and calls on this machine",
    "cache": "show the compiled libraries that processes share, or remove them",
    "run": "run a script with so many ranks, on these machines",
}
MODULES = {"run": "run.session.run_command"}  # commands whose module is not in ``synk.tools``


def main(argv: list[str]) -> int:
    """Run the command that ``argv`` names with the arguments after it; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m synk",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{name:8}{what}" for name, what in COMMANDS.items()),
    )
    parser.add_argument("command", choices=COMMANDS, help="what to do")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its own: see COMMAND --help")
    chosen = parser.parse_args(argv)
    if chosen.command != "doctor":
        check_package()
    return import_module(f"synk.{MODULES.get(chosen.command, f'tools.{chosen.command}')}").main(
        chosen.arguments
    )


def check_package() -> None:
    """Exit with an advice if another project, also called synk, has replaced ``synk/__init__.py``."""
    from synk.values.namesake import REMEDY, is_ours

    own = Path(__file__).with_name("__init__.py")
    if not is_ours(own):
        raise SystemExit(f"{own} is another project's, called synk too: {REMEDY}")


def stand_alone() -> None:
    """Make the modules of synk importable without running its ``__init__``."""
    folder = Path(__file__).resolve().parent
    # Python has put the folder itself there, from which modules would be imported without their package.
    sys.path[0] = str(folder.parent)
    bare = types.ModuleType("synk")
    bare.__path__ = [str(folder)]
    sys.modules["synk"] = bare


if __name__ == "__main__":
    if not __package__:
        stand_alone()
    sys.exit(main(sys.argv[1:]))
