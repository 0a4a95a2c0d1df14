"""Reports: everything shown is computed from rows, nothing is computed again."""
