"""What fills one cell of the pattern-selectivity study: stages, groups, the matched null, claims."""
