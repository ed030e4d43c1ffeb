"""Decisions about a graph before its program is written: pure, graphs in, decisions out.

lazy -> place -> memory -> destination -> reuse
"""
