"""Note in which pieces of a region's own memory views lie, and after which node each piece is given back.

Pure bookkeeping; the writer adds the lines.
"""

from collections.abc import Collection, Iterator


class Places:
    """The pieces of memory, numbered as they are taken, and the views that lie in them."""

    def __init__(self) -> None:
        self._last_use: list[int] = []  # by place, the node after which it is given back
        self._of: dict[str, frozenset[int]] = {}  # by view, the places in which its elements may be
        self._whole: set[str] = set()  # views of all of a place that was taken for a variable

    def __len__(self) -> int:
        return len(self._last_use)

    def take(self, node: int) -> int:
        """Return the number of a new piece, which is needed until ``node`` has run, or longer; see `keep`."""
        self._last_use.append(node)
        return len(self._last_use) - 1

    def put(self, view: str, places: Collection[int] = (), whole: bool = False) -> None:
        """Note in which pieces a view may lie: in none if its memory is an argument's or a result's.

        ``whole`` says that it is all of a piece that was taken for one variable.
        """
        self._of[view] = frozenset(places)
        if whole:
            self._whole.add(view)

    def of(self, view: str) -> frozenset[int]:
        """Return the pieces in which a view may lie."""
        return self._of.get(view, frozenset())

    def keep(self, view: str, node: int) -> None:
        """Keep the pieces in which a view lies until ``node`` has run, at least."""
        for place in self.of(view):
            self._last_use[place] = max(self._last_use[place], node)

    def given_back_after(self, node: int) -> Iterator[int]:
        """Yield the pieces that are not needed any more when ``node`` has run."""
        return (place for place, last in enumerate(self._last_use) if last == node)

    def is_own_since(self, view: str, first: int) -> bool:
        """Tell whether a view lies in the region's own memory, in pieces from number ``first`` on alone."""
        return bool(self.of(view)) and min(self.of(view)) >= first

    def is_free_after(self, view: str, node: int, others: Collection[str]) -> bool:
        """Tell whether a view is a whole piece that neither ``others`` nor any node after ``node`` needs."""
        if view not in self._whole:
            return False
        (place,) = self.of(view)
        return self._last_use[place] <= node and all(place not in self.of(other) for other in others)
