"""Logs every step of a rank outside of the passes, and records passes later in a job."""
