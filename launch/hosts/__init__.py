"""Hosts without a common folder: their launchers bring what was recorded to the first one."""
