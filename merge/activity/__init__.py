"""What each rank was doing at each instant: activities from timelines, waits, and what a step was spent on."""
