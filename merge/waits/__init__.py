"""What blocks ranks: as the sync pass noted it, else as far as timelines show it."""
