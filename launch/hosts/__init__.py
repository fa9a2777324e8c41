"""For hosts that share no directory: their launchers copy the recorded files to the first host."""
