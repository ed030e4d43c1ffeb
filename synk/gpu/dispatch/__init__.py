"""Implementations of Ops that differ on a GPU from those in `synk.compile.dispatch`."""
