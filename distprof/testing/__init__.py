"""What tests of other projects use."""
