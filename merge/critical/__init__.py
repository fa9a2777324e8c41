"""The longest chain of each step over all ranks, what lies on it, and how much longer each module could take."""
