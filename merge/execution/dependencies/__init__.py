"""What needed what: dependencies between the calls of a rank."""
