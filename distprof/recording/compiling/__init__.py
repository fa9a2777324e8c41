"""What torch.compile compiles while the job runs: when, for whom, how long it takes, and why it does it again."""
