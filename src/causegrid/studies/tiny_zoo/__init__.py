"""The parts of the study that trains the tiny zoo."""
