"""Several machines: which there are, how they trust each other, how their leaders exchange arrays."""
