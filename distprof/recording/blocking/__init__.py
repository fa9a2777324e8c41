"""What blocks a rank: operators and functions that wait, each with the line of the script that calls it."""
