"""Keep compiled libraries in a folder that many processes share.

The store reads only files that this user alone can have written (see `own_files`). Each file ends with a
digest of its name and its content; a file that is damaged, half written or another library's is ignored and
written anew. The bytes whose digest was compared are those that are loaded, so files may change at any time.
From a folder that has become too large, the libraries used longest ago are removed (see `kept`).
"""

import fcntl
import hashlib
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from synk.compile.native.kept import KeptFile, look_into, shrink, size_limit
from synk.compile.native.own_files import NotOwn, own_folder, read_own_file


class Store:
    """A folder of compiled libraries by name, by default that of `default_folder`.

    The folder is made when the first library is kept. If it cannot be used, nothing is kept, and a warning
    says so once.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None):
        self.folder = default_folder() if folder is None else Path(folder)
        self._unlooked = math.inf  # bytes kept since all files were last looked at

    def find(self, name: str) -> bytes | None:
        """Return the content of a library if the store has it intact, or None."""
        try:
            with own_folder(self._place()) as folder:
                content = read_own_file(f"{name}.so", folder)
                if content[-32:] != _digest(name, content[:-32]):
                    return None
                with suppress(OSError):  # it may be gone by now
                    os.utime(f"{name}.so", dir_fd=folder, follow_symlinks=False)  # used now
        except OSError:
            return None
        return content[:-32]

    def keep(self, name: str, library: bytes) -> None:
        """Write a library into the folder, if that can be used."""
        if self.find(name) is not None:
            return  # another rank was faster
        try:
            limit = size_limit()
            with own_folder(self._place(), make=True) as folder:
                _replace(f"{name}.so", library + _digest(name, library), folder)
                self._unlooked += len(library)
                if self._unlooked > limit // 64:  # each time would take long in a full folder
                    shrink(folder, limit)
                    self._unlooked = 0
        except FileExistsError:
            pass  # another rank is writing it
        except (OSError, ValueError) as error:
            self._say(error)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Within this context, keep other processes from entering with this name; wait if one has entered.

        A process enters it to compile a library. One that has waited keeps no other out: if the first one
        failed, all of them try at the same time. The end of a process releases its lock. In a folder that
        cannot be used, nobody waits.
        """
        with ExitStack() as held:
            try:
                folder = held.enter_context(own_folder(self._place(), make=True))
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                lock = os.open("lock", flags, 0o600, dir_fd=folder)
                held.callback(os.close, lock)
                # A byte for each name. Children that a process forks meanwhile do not hold such a lock.
                byte = int.from_bytes(_digest(name, b"")[:7], "little")
                try:
                    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
                except (BlockingIOError, PermissionError):
                    fcntl.lockf(lock, fcntl.LOCK_EX, 1, byte)
                    fcntl.lockf(lock, fcntl.LOCK_UN, 1, byte)
            except OSError as error:
                # An OSError without a number was raised by a signal's handler: a TimeoutError, for example.
                if error.errno is None and not isinstance(error, NotOwn):
                    raise
            yield

    def list_files(self) -> tuple[list[KeptFile], list[str]]:
        """Return the libraries, those used longest ago first, and what is wrong with files that are ignored.

        Raises OSError if the folder is missing or cannot be used.
        """
        with own_folder(self._place()) as folder:
            return look_into(folder)

    def clear(self) -> list[KeptFile]:
        """Remove all libraries, and return them; raises OSError as `list_files` does."""
        with own_folder(self._place()) as folder:
            return shrink(folder, most=-1)  # those without a byte too

    def _place(self) -> Path:
        if self.folder is None:
            raise NotOwn("there is no home folder")
        return self.folder

    def _say(self, error: Exception) -> None:
        if str(self.folder) not in _said:
            _said.add(str(self.folder))
            warnings.warn(
                f"compiled loops are not kept in {self.folder or 'a folder'}: {message_of(error)}\n"
                "Every process compiles its own; set SYNK_CACHE to a folder that is yours alone",
                stacklevel=4,
            )


_said: set[str] = set()


def message_of(error: Exception) -> str:
    """Return an error's message for people: the system's words for its number, or the error as text."""
    return getattr(error, "strerror", None) or str(error)


def _replace(name: str, content: bytes, folder: int) -> None:
    """Write a new file of this name, in place of any that is there."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # whatever the umask is
        file.write(content)


def name_of(*parts: str) -> str:
    """Return the name of a library: a digest of all that its machine code depends on."""
    return f"k{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}"


def _digest(name: str, content: bytes) -> bytes:
    return hashlib.sha256(name.encode() + content).digest()


def default_folder() -> Path | None:
    """Return ``$SYNK_CACHE``, else ``synk`` in ``$XDG_CACHE_HOME`` or ``~/.cache``; None without a home."""
    own = os.environ.get("SYNK_CACHE")
    if own:
        return Path(own)
    # The XDG specification has relative paths ignored; "~" stays what it is where nobody knows the user.
    for cache in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(cache):
            return Path(cache) / "synk"
    return None
