"""What is written in C, for those rooms that need it: one library, compiled when distprof is installed."""
