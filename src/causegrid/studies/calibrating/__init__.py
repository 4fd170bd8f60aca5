"""What one cell of the calibration does, and how a finished run is read."""
