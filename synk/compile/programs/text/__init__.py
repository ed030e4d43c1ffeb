"""The text of programs, the functions that it calls beside implementations, and the notes on errors."""
