"""Clocks of ranks compared with each other while a job is recorded."""
