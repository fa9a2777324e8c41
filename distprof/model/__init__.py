"""The script's model: its modules and their names, the running module, parameters, compiled and scripted parts."""
