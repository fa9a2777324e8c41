"""What a device can do at most, as published and as measured, and the roofline."""
