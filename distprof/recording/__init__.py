"""One rank of a job: its steps are recorded and its folder of the run directory is written."""
