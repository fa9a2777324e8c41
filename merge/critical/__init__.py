"""The critical path of each step across ranks, the time of everything on it, and the slack of each module."""
