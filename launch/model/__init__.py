"""A model that is counted without a job: how it is made, what it is given, how it is called."""
