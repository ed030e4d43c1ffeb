"""Keep compiled libraries in a folder that many processes share.

A file is written under another name and renamed, so a reader sees all of it or nothing, and of two writers
one wins. Each ends with a digest of itself: a damaged or foreign file is not loaded, which could end the
process, but made anew.
"""

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path


class Store:
    """Libraries by name.

    Parameters
    ----------
    folder : path, optional
        Default: see `default_folder`. It is made when something is kept; a folder that cannot be written
        to keeps nothing.
    """

    def __init__(self, folder: str | os.PathLike | None = None):
        self.folder = default_folder() if folder is None else Path(folder)

    def find(self, name: str) -> Path | None:
        """Return the path of an intact library, or None."""
        path = self._path(name)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        return path if content[-32:] == _digest(name, content[:-32]) else None

    def keep(self, name: str, library: Path) -> None:
        """Keep a copy of ``library``, if the folder can be written to."""
        content = library.read_bytes()
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content + _digest(name, content))
                os.replace(temporary, self._path(name))
            except BaseException:
                os.unlink(temporary)
                raise

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.so"


def name_of(*parts: str) -> str:
    """Return the name of a library: a digest of all that its machine code depends on."""
    return f"k{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}"


def _digest(name: str, content: bytes) -> bytes:
    return hashlib.sha256(name.encode() + content).digest()


def default_folder() -> Path:
    """Return ``$SYNK_CACHE``, else ``synk`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    own = os.environ.get("SYNK_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "synk"
