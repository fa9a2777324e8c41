OWN = "graphlib of the job"
