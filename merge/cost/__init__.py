"""What collectives cost: waiting, transfer, bandwidth, bytes between ranks."""
