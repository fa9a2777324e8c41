"""What a command shows while it works: its last row, its progress, its streams."""
