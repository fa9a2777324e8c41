"""What operators are made of: calls in the timeline of a rank, with their nesting, devices and memory."""
