"""Support for tests of other projects."""
