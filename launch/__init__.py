"""Starts the ranks of a job and holds the command line."""
