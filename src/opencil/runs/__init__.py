"""Runs: the store on disk, and the order of work from data to rows."""
