"""Common parts of benchmarks: options, costs of programs, tables, and RESULTS.md."""
