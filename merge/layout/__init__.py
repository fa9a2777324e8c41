"""Slices that overlap and arrows that lead nowhere: what becomes of them, so that a viewer shows the rest."""
