"""Tables that are larger than what is held in memory, on disk in parts."""
