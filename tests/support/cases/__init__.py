"""Arrays, graphs and reference results that tests of several suites share."""
