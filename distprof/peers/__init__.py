"""What other counters report for a model, computed from our own record of the call."""
