"""The model of the script: its modules and their names, which one runs, parameters, compiled and scripted parts."""
