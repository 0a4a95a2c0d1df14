"""Mutants that no test can notice, each with the reason: they are not among those that are tried."""

#: The module, the line as it is written, the change, and why nobody can see it.
EQUIVALENT: list[tuple[str, str, str, str]] = []
