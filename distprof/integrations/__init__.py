"""What frameworks need to be recorded in one line. A file for each framework, imported by who uses it."""
