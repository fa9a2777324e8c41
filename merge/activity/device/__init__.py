"""What a device did: its commands, its steps, and why it was idle."""
