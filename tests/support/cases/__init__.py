"""Arrays, graphs and reference results that tests of several rooms share."""
