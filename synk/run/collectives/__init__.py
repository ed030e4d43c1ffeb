"""One class for each collective on shared variables: what it takes, its check, its step, what comes back."""
