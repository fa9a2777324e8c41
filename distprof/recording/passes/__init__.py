"""Passes of a recording, one file each: what is switched on for some steps, and the rows that result."""
