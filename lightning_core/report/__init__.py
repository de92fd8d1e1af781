"""Reports of a run: the HTML report, charts, plots."""
