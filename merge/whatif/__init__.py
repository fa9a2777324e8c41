"""What steps of a job would take with something changed: work, stragglers, communication."""
