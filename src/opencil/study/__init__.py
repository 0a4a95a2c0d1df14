"""Store rows with the records of their runs, for reports and for publication."""
