"""Decide which rows ranks read and how results are combined, without any process; messages, errors, files."""
