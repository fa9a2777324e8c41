"""What is known of a model: names of its modules, which one is running, parameters, compiled and scripted parts."""
