"""The watch of all steps of a job: finds slowdowns, during the job and afterwards."""
