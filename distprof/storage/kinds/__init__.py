"""What each kind of storage does in its own way, and which URLs are whose."""
