"""What is written to a storage: whole objects, folders, and what several processes write together."""
