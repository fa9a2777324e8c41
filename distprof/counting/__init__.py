"""What a call of a model costs: FLOPs, MACs, bytes and parameters by module and operator."""
