"""cuDNN's front end, computing with NumPy."""
