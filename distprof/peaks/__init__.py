"""Peak rates of devices, published and measured, and the roofline model."""
