"""Who a process is: rank, host, versions, and its place in the device mesh."""
