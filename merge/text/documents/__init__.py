"""What commands print with `--json`."""
