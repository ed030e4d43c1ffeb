"""Decide, without any process, which rows ranks read and how results are combined; messages, errors, files."""
