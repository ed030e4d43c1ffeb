"""Watch methods of objects: replace them on the objects themselves, and put them back.

    Recorder, Profile -> ReplacedMethods -> calls of a communicator, a rank, ... are watched -> put_back

So a command costs nothing more while nobody watches: no code asks whether somebody does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from synk.transport.comm.communicator import Collectives

COLLECTIVES = [name for name in vars(Collectives) if name[0] != "_"]
Method = Callable[..., Any]


class ReplacedMethods:
    """Methods of single objects that are replaced until `put_back`; several may be on top of each other."""

    def __init__(self) -> None:
        self._put_back: list[tuple[Any, str, Method | None]] = []  # object, method, what replaced it before

    def replace(self, owner: Any, method: str, by: Method) -> None:
        """Call ``by`` wherever ``owner.method`` is called."""
        self._put_back.append((owner, method, vars(owner).get(method)))
        setattr(owner, method, by)

    def watch_collectives(self, communicator: Any, watch: Callable[[str, Method], Method]) -> None:
        """Replace each collective of a communicator by ``watch(name, method)``.

        One that is made of another is seen twice: `reduce_scatter` calls `all_gather`. Where a step shares
        memory by itself, and calls none of them, both of its barriers are watched, by the kind of the step.
        """
        for name in COLLECTIVES:
            self.replace(communicator, name, watch(name, getattr(communicator, name)))
        at_once = communicator.at_once

        def watched(kind: str, *others: Any, **keywords: Any) -> AbstractContextManager[None]:
            context = at_once(kind, *others, **keywords)
            return context if kind in COLLECTIVES else WatchedContext(context, partial(watch, kind))

        self.replace(communicator, "at_once", watched)

    def put_back(self) -> None:
        """Let all methods be what they were before."""
        while self._put_back:
            owner, method, before = self._put_back.pop()
            if before is None:
                vars(owner).pop(method, None)
            else:
                setattr(owner, method, before)


class WatchedContext(AbstractContextManager[None]):
    """A context whose beginning and end are watched, each by itself."""

    def __init__(self, context: AbstractContextManager[None], watch: Callable[[Method], Method]):
        self._enter, self._exit = watch(context.__enter__), watch(context.__exit__)

    def __enter__(self) -> None:
        self._enter()

    def __exit__(self, *raised: Any) -> Any:
        return self._exit(*raised)
