"""What fills one cell of the state-encoding study: stages, the erasure table, claims."""
