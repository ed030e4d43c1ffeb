"""Pure values that every room uses: rows of a batch, messages, reductions, errors."""
