"""One row of the performance page per file: a function decorated with `bench.row`, found by import."""
