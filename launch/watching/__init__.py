"""The process beside a job that watches its steps, and the ways in which it shows what it finds."""
