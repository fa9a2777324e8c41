"""What the commands that read runs do."""
