"""Timing: how long the modules and the parts of steps take."""
