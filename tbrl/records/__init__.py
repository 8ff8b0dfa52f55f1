"""What a run leaves on disk: everything reported can be recomputed from these files."""
