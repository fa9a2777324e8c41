"""What a machine says about itself, read from the kernel and from the libraries of its GPUs."""
