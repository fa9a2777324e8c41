"""Records the steps of one rank of a job and writes the rank's folder of the run directory."""
