"""Rows with the runs' records: what reports are made of, and what is published."""
