"""Costs of collectives: waiting, transfer, bandwidth, and bytes between ranks."""
