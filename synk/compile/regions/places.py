"""The memory of a region's own: which views lie in it, and after which node each place is given back.

Pure bookkeeping; the writer turns it into lines.
"""

from collections.abc import Collection, Iterator


class Places:
    """Places in memory by number, in the order they are taken, and the views that lie in them."""

    def __init__(self) -> None:
        self._last_use: list[int] = []  # by place, the node after which it is given back
        self._of: dict[str, frozenset[int]] = {}  # by view, the places in which its elements may be
        self._whole: set[str] = set()  # views of all of a place that was taken for a variable

    def __len__(self) -> int:
        return len(self._last_use)

    def take(self, node: int) -> int:
        """Take another place, which is needed until ``node`` has run, if nothing keeps it longer."""
        self._last_use.append(node)
        return len(self._last_use) - 1

    def put(self, view: str, places: Collection[int] = (), whole: bool = False) -> None:
        """Say in which places a view lies: in none if its memory is somebody else's."""
        self._of[view] = frozenset(places)
        if whole:
            self._whole.add(view)

    def of(self, view: str) -> frozenset[int]:
        """Return the places in which a view may lie."""
        return self._of.get(view, frozenset())

    def keep(self, view: str, node: int) -> None:
        """Keep what a view lies in at least until ``node`` has run."""
        for place in self.of(view):
            self._last_use[place] = max(self._last_use[place], node)

    def given_back_after(self, node: int) -> Iterator[int]:
        """Yield the places that are not needed any more when ``node`` has run."""
        return (place for place, last in enumerate(self._last_use) if last == node)

    def is_own_since(self, view: str, first: int) -> bool:
        """Tell whether a view lies in places alone that were taken since ``first`` was the next."""
        return bool(self.of(view)) and min(self.of(view)) >= first

    def is_free_after(self, view: str, node: int, others: Collection[str]) -> bool:
        """Tell whether a view is a whole place that nothing needs after ``node``, the ``others`` included."""
        if view not in self._whole:
            return False
        (place,) = self.of(view)
        return self._last_use[place] <= node and all(place not in self.of(other) for other in others)
