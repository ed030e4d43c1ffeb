"""Several machines: which there are, how they find and trust each other, how their leaders exchange arrays."""
