"""What is known of a run as tools for coding agents: `distprof mcp`."""
