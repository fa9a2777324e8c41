"""Operators of all ranks: nested on their threads, with the module and phase they ran in, their kernels and FLOPs."""
