"""The helpers of tests: each folder stands for one thing that a test has in its place, or needs beside it."""
