"""Implements `distprof mcp`: tools that answer questions of coding agents about a run."""
