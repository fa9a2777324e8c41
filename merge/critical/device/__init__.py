"""The critical path of a step of one device: through streams, launches, synchronisations and the host."""
