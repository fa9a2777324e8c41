"""What a merge adds to the events: steps, collectives with their arrows, critical paths, tensors, counters."""
