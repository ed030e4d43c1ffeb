"""Watch over protected inputs in linear time: no node may overwrite what the caller keeps.

After every replacement PyTensor asks, one by one, whether each input and output is destroyed, which in a
network with hundreds of parameters takes as long as the replacements. The same answer is in one table.
"""

from __future__ import annotations

from typing import Any

from pytensor.compile.aliasing import Supervisor
from pytensor.graph.features import Feature
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import GraphRewriter
from pytensor.graph.utils import InconsistencyError


class SuperviseQuickly(GraphRewriter):
    """A rewriter that changes nothing but how a graph's `Supervisor` looks; place it first."""

    def add_requirements(self, fgraph: FunctionGraph) -> None:
        """Exchange the supervisor, if the graph has one."""
        for feature in list(fgraph._features):
            if type(feature) is Supervisor:
                feature.on_validate = QuickLook(feature.protected)

    def apply(self, fgraph: FunctionGraph) -> None:
        """Change nothing."""


class QuickLook:
    """What a `Supervisor` does when a graph has changed.

    Parameters
    ----------
    protected : sequence of Variable
        Inputs that no node may overwrite; nor may one overwrite an output.
    """

    def __init__(self, protected: Any):
        self._protected = protected

    def __call__(self, fgraph: FunctionGraph) -> None:
        handler: Feature | None = getattr(fgraph, "destroy_handler", None)
        if handler is None:
            return
        roots, _, destroyers = handler.refresh_droot_impact()
        if not destroyers:
            return
        for variable in (*self._protected, *fgraph.outputs):
            if roots.get(variable) in destroyers:
                raise InconsistencyError(f"trying to destroy a protected variable: {variable}")
