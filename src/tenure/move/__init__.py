"""`tenure move`: everything in one database into another, of either engine."""
