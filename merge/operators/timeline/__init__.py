"""Timelines of ranks, which operators are read from: calls with their nesting, devices and memory."""
