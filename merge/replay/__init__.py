"""Replay of a job: its threads, queues and collectives as a graph, and what it would have taken with less work."""
