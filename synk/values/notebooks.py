"""Show a value in a notebook as HTML, where a script would print it.

    in_notebook() -> Area(text, html): shown once, and changed in its place

Nothing is imported that the notebook has not imported itself.
"""

from __future__ import annotations

import sys
from base64 import b64encode
from html import escape


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook; IPython in a terminal shows text."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def preformatted(text: str) -> str:
    """Return a text as HTML that keeps its columns, and scrolls where lines are longer than the page."""
    return f'<pre style="white-space: pre; overflow-x: auto">{escape(text)}</pre>'


class Area:
    """A part of a cell's output, which can be changed in its place.

    Parameters
    ----------
    text : str
        Shown as it is, unless there is one of the others, by front ends that show these.
    html : str
    png : bytes
    """

    def __init__(self, text: str, html: str = "", png: bytes = b""):
        display = sys.modules["IPython"].display.display
        self._handle = display(_by_type(text, html, png), raw=True, display_id=True)

    def update(self, text: str, html: str = "") -> None:
        """Show something else in the same place."""
        self._handle.update(_by_type(text, html, b""), raw=True)


def _by_type(text: str, html: str, png: bytes) -> dict[str, str]:
    """Return the texts and pictures by their types, from which a front end chooses."""
    if png:
        return {"text/plain": text, "image/png": b64encode(png).decode()}
    return {"text/plain": text, "text/html": html or preformatted(text)}
