"""Pages and pictures of a run: the HTML report, charts, plots."""
