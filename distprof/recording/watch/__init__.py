"""What a rank notes of every step outside of the passes, until the script ends."""
