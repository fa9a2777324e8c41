"""What a step of the script is: what ends one, its phases and evaluation, and the one that runs."""
