"""The layout of a rank's events: handles overlapping slices and incomplete arrows, which a viewer cannot show."""
