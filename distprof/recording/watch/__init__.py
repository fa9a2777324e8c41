"""What a rank notes of every step outside of the passes, and what is recorded later in a job."""
