"""What a merge draws itself: steps, collectives with their arrows, chains, tensors, counters."""
