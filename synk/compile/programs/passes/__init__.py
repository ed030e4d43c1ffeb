"""Decisions about a program before it is written: pure, graphs in, decisions out; `plan` lists them."""
