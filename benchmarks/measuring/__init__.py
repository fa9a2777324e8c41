"""What benchmarks have in common: options, costs of programs, tables, and RESULTS.md."""
