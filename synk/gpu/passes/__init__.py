"""Decisions about a program that holds for GPUs only."""
