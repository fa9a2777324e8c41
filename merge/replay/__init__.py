"""Replay of a job: its threads, queues and collectives as a graph, and how long it would have taken with less work."""
