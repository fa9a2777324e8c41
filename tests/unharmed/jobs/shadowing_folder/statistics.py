OWN = "statistics of the job"
