"""Brings the clocks of all ranks to the clock of rank 0."""
