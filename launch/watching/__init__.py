"""The process beside a job that watches its steps, and what people see of it."""
