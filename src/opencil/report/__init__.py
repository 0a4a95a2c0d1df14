"""Reports: tables, statistics, figures and a page, computed from the rows of runs alone."""
