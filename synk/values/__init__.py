"""Pure values that every suite uses: rows of a batch, messages, reductions, errors."""
