"""Dependencies between the calls of a rank."""
