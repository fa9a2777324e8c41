"""Who made the others wait, with which activity, at what cost, and how sure that is."""
