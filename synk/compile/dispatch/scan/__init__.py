"""Entries for loops inside of graphs: Scan, whose values lie in traces, and loops of scalars."""

from synk.compile.dispatch.scan import loop, scalar_loop

__all__ = ["loop", "scalar_loop"]
