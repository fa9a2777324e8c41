"""What blocks ranks: as the sync pass recorded it, or else as far as timelines show it."""
