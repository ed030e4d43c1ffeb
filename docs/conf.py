"""Build the pages of this folder as a site: ``make site``.

    docs/*.rst, README.rst, docstrings -> sphinx -> build/site

Pages name each other by their paths in the repository, as ``docs/training.rst``, so that they can be read
there, too; `LinkPaths` makes links of these. In docstrings, a name between single backticks becomes a link
where the reference has that name, and stays a name where it has not.
"""

import re
import sys
import types
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.roles import XRefRole
from sphinx.transforms import SphinxTransform

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

# PyMC needs Python 3.12, and much more than its reference does: its names alone will do here.
autodoc_mock_imports = ["pymc", "nutpie", "arviz_base", "pyarrow", "xarray"]
sys.modules["synk.extensions.pymc.needed"] = types.ModuleType("needed")

import synk  # noqa: E402

project = "synk"
copyright = "the developers of synk"
version = release = synk.__version__
root_doc = "index"
exclude_patterns = ["inventories", "gpu_report.rst"]  # the report is one of a machine with a GPU
default_role = "known"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "numpydoc",
    "sphinx_design",
    "sphinx_copybutton",
]
autodoc_typehints = "none"  # docstrings say what arguments are, in words
autodoc_member_order = "bysource"
autosummary_generate = False
numpydoc_show_class_members = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Nothing is fetched: docs/inventories/make_inventories.py has written what is linked to.
intersphinx_mapping = {
    name: (address, str(HERE / "inventories" / f"{name}.inv"))
    for name, address in {
        "python": "https://docs.python.org/3/",
        "numpy": "https://numpy.org/doc/stable/",
        "pytensor": "https://pytensor.readthedocs.io/en/latest/",
        "pymc": "https://www.pymc.io/projects/docs/en/stable/",
    }.items()
}

html_theme = "pydata_sphinx_theme"
html_title = "synk"
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_show_sourcelink = False
html_theme_options = {"show_toc_level": 2, "navigation_depth": 2, "show_prev_next": True}

PAGE = re.compile(r"(?:docs/(?P<docs>[\w/]+)|(?P<top>README|CONTRIBUTING)|(?P<deploy>deploy/README))\.rst")
ELSEWHERE = {
    "README": "tutorials/readme",
    "CONTRIBUTING": "explanations/contributing",
    "deploy/README": "howto/deploy",
}

MADE = {"synk.Data", "synk.Function", "synk.OnRanks", "synk.extensions.fit.Training"}
MADE |= {
    "synk.extensions.pymc.LogDensity",
    "synk.extensions.pymc.MeanField",
    "synk.compile.observe.report.Report",
}
MADE |= {"synk.run.session.timeline.Timeline", "synk.run.recording.summary.Summary"}


def page_of(path: str) -> str | None:
    """Return the page of the site that shows a file of the repository; None if none does."""
    found = PAGE.fullmatch(path)
    if not found:
        return None
    return found["docs"] or ELSEWHERE[found["top"] or found["deploy"]]


class LinkPaths(SphinxTransform):
    """Make links of literals and of links that name a page by its path in the repository."""

    default_priority = 500

    def apply(self, **options: object) -> None:
        """Replace them where the site has that page; a link that names no page is an error of Sphinx's."""
        for node in [*self.document.findall(nodes.literal), *self.document.findall(nodes.reference)]:
            page = page_of(node.get("refuri", node.astext()))
            if page in self.env.found_docs and not isinstance(node.parent, nodes.reference):
                node.replace_self(self.link(node, page))

    def link(self, node: nodes.Element, page: str) -> nodes.Node:
        """Return a link to the page, with its title for a text where the text was its path."""
        named = node.astext() if PAGE.fullmatch(node.astext()) is None else ""
        return addnodes.pending_xref(
            "",
            nodes.inline("", named or page),
            refdomain="std",
            reftype="doc",
            refexplicit=bool(named),
            reftarget=f"/{page}",
            refdoc=self.env.current_document.docname,
            refwarn=True,
        )


class Known(XRefRole):
    """A name that is linked if it is known; parameters and internals between backticks are not."""

    def process_link(self, env, node, has_explicit_title, title, target):
        """Look the name up as the Python domain does, from the module and the class of the docstring."""
        node["py:module"] = env.ref_context.get("py:module")
        node["py:class"] = env.ref_context.get("py:class")
        node["known"] = False
        node["refdomain"] = "py"
        node["reftype"] = "obj"
        return title, target


def leave_unknown(app, env, node, text):
    """Return the plain text of a name that is only linked if it is known."""
    return text if "known" in node else None


def without_arguments(app, what, name, obj, options, signature, returned):
    """Leave out the arguments of classes that functions of synk make, and users do not call."""
    return ("", None) if name in MADE else None


def setup(app):
    """Register what is above; the last handler of what Sphinx and its inventories do not know is ours."""
    app.connect("autodoc-process-signature", without_arguments)
    app.add_role("known", Known())
    app.add_transform(LinkPaths)
    app.connect("missing-reference", leave_unknown, priority=900)
