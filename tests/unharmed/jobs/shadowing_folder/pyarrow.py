OWN = "pyarrow of the job"
