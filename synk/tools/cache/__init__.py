"""``python -m synk cache``: show the compiled libraries that this user's processes share, or remove them.

Store.look -> summary or JSON
--clear    -> a question -> Store.clear
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime

from synk.compile.native.kept import KeptFile, size_limit
from synk.compile.native.store import Store, message_of
from synk.tools.doctor.machine import size

DESCRIPTION = "Show the compiled libraries that this user's processes share, or remove them."


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status, 1 if the folder cannot be used, or the user refused."""
    parser = argparse.ArgumentParser(prog="python -m synk cache", description=DESCRIPTION)
    parser.add_argument("--clear", action="store_true", help="remove all of them; programs compile anew")
    parser.add_argument("--yes", action="store_true", help="clear without asking")
    parser.add_argument("--json", action="store_true", help="print JSON, with times in seconds since 1970")
    options = parser.parse_args(argv)
    store = Store()
    try:
        limit = size_limit()
        try:
            kept, refused = store.list_files()
        except FileNotFoundError:
            kept, refused = [], []
        if options.clear:
            return clear(store, kept, options.yes)
    except (OSError, ValueError) as error:
        print(f"synk cache: {store.folder or 'a folder'}: {message_of(error)}", file=sys.stderr)
        return 1
    print((as_json if options.json else summary)(store, kept, refused, limit))
    return 0


def clear(store: Store, kept: Sequence[KeptFile], agreed: bool) -> int:
    """Remove all files of a store, after asking unless ``agreed``; return the exit status."""
    if kept and not agreed and not confirmed(f"Remove {counted(kept)} from {store.folder}? [y/N] "):
        print("synk cache: nothing is removed; --yes removes without asking", file=sys.stderr)
        return 1
    print(f"removed {counted(store.clear() if kept else [])}")
    return 0


def confirmed(question: str) -> bool:
    """Ask a question on the terminal; return whether the answer is yes."""
    try:
        return input(question).strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        print()
        return False


def summary(store: Store, kept: Sequence[KeptFile], refused: Sequence[str], limit: int) -> str:
    """Return a description of a store as text."""
    lines = [
        f"folder     {store.folder}",
        f"kept       {counted(kept)}",
        f"limit      {size(limit)}, then those used longest ago go (SYNK_CACHE_LIMIT)",
    ]
    if kept:
        first, last = (datetime.fromtimestamp(file.used) for file in (kept[0], kept[-1]))
        lines.append(f"last used  from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M}")
    return "\n".join([*lines, *(f"not taken  {reason}" for reason in refused)])


def counted(files: Sequence[KeptFile]) -> str:
    """Return the number of files and their total size as text."""
    return f"{len(files)} librar{'y' if len(files) == 1 else 'ies'}, {size(sum(file.size for file in files))}"


def as_json(store: Store, kept: Sequence[KeptFile], refused: Sequence[str], limit: int) -> str:
    """Return a description of a store as JSON."""
    libraries = [{"name": file.name, "bytes": file.size, "used": file.used} for file in kept]
    described = {"folder": str(store.folder), "limit": limit, "libraries": libraries, "refused": refused}
    return json.dumps(described, indent=1)
