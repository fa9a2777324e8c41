"""Which ranks delay the job, with which activity, what mending them gains, and how sure that is."""
