"""Drop-in replacements for other FLOP counters and profilers."""
