"""causegrid."""
