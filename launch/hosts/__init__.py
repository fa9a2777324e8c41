"""Hosts that share no directory: their launchers copy what was recorded to the first host."""
