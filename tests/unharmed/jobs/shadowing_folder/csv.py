OWN = "csv of the job"
