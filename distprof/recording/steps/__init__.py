"""Steps of the script: what ends one, its phases, which calls are evaluation, and the current step."""
