"""Several machines: which there are, how they find and trust each other, and where on them ranks run."""
