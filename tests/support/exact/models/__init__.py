"""Models as users write them for one process, with data; ranks must train them to the same numbers."""
