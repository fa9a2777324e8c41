"""How ranks divide a model among them, inferred from what they hold and what they exchange."""
