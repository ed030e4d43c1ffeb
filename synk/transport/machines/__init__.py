"""Runs on several machines: list them, start and authenticate their leaders, exchange arrays between them."""
