"""What `profile_analyze` reads, chooses and prints."""
