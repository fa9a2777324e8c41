"""`distprof whatif`: predicts the step times of a job with changed work, stragglers or communication."""
