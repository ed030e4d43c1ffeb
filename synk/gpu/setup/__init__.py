"""Set up runs on GPUs: choose them, and connect their ranks."""
