"""The watcher of a host: a process next to the ranks, which notices what becomes slow and why."""
