"""One file per family layout; each registers its table under every model type that shares it."""
