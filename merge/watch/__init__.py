"""All steps of a job, while it runs and afterwards."""
