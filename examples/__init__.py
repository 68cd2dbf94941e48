"""Programs to try and to copy from."""
