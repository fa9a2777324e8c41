"""What ranks did, as a graph that can be replayed: calls, waits, pieces of work and steps."""
