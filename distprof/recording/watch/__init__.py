"""What is noted of a job after the passes, and what is recorded later in it."""
