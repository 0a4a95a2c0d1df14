"""Submit results, check what others submitted, and write them in the formats of other boards."""
