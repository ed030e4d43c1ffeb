"""Elementwise loops: a whole expression in one pass over memory.

Elemwise node -> body (templates, one expression per scalar Op) -> `synk.compile.regions`: C, for NumPy
"""

from synk.compile.programs.elementwise.body import has_template
from synk.compile.programs.elementwise.chain_writer import NoTemplate
from synk.compile.programs.elementwise.templates import template

__all__ = [
    "NoTemplate",
    "has_template",
    "template",
]
