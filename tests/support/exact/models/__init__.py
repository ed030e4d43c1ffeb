"""Models as users write them for one process, with data: what ranks must train to the same numbers."""
