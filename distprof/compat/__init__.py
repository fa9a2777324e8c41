"""Drop-in replacements: code written for other counters comes in with one import changed, right numbers go out."""
