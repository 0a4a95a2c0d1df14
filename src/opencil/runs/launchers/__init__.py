"""Launchers: ways of spreading runs over processes, a file each. ``runs.launch`` defines their interface."""
