"""What hostile and broken clients do, one story a file."""
