"""Drop-in replacements for other FLOP counters."""
