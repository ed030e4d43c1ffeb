"""The commands of ``python -m synk``: doctor, bench, cache."""
