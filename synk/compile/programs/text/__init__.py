"""Programs: their text, what it calls beside implementations, and whom to blame when a line fails."""
