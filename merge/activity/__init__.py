"""What each rank was doing at each instant: activities from timelines, waits, and the breakdown of steps."""
