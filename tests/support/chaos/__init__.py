"""Jobs that are recorded while something goes wrong: the job, what goes wrong, and what has to hold afterwards."""
