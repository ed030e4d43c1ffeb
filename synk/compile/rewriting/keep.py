"""Keep the user's lines while a graph is rewritten.

Many rewrites put nodes in place of others without a word about where those came from. Whatever replaces a
variable was built by the line that built it.
"""

from pytensor.graph.features import AlreadyThere, Feature
from pytensor.graph.rewriting.basic import GraphRewriter


class KeepLines(GraphRewriter):
    """A rewriter that changes nothing but lets traces follow replacements; place it first."""

    def add_requirements(self, fgraph):
        fgraph.attach_feature(LineKeeper())

    def apply(self, fgraph):
        pass


class LineKeeper(Feature):
    """Give what replaces a variable its trace, if it has none."""

    def on_attach(self, fgraph):
        # One is enough, and inner rewriters may ask again.
        if any(isinstance(feature, LineKeeper) for feature in fgraph._features):
            raise AlreadyThere()

    def on_change_input(self, fgraph, node, index, old, new, reason=None):
        if not getattr(new.tag, "trace", None):
            new.tag.trace = getattr(old.tag, "trace", [])
