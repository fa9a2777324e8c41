"""The job that a rank belongs to: its run, its store, its attempts, agreed on with the other ranks."""
