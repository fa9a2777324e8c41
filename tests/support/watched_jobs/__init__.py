"""Training jobs that are made up: what each rank would have noted of every step, and what troubles it."""
