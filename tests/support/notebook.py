"""A stand-in for the kernel of a notebook, which keeps what cells show."""

import sys
from types import SimpleNamespace


class Kernel:
    """What a cell finds as IPython; ``areas`` has for each display what it showed, by type, in order."""

    def __init__(self, monkeypatch):
        self.areas = []
        shell = SimpleNamespace(kernel=self)
        fake = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=self._display))
        monkeypatch.setitem(sys.modules, "IPython", fake)

    def _display(self, bundle, raw, display_id):
        assert raw
        assert display_id
        shown = [bundle]
        self.areas.append(shown)
        return SimpleNamespace(update=lambda bundle, raw: shown.append(bundle))
