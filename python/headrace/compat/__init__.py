"""Stand-ins for other packages: their names and call shapes, read by this package's engine."""
