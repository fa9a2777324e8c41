"""The clocks of all ranks brought to the clock of rank 0."""
