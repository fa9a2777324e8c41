"""What other counters would report: our record of a call comes in, their numbers line by line go out."""
