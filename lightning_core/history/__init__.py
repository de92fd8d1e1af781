"""History of a journal: series of each job, the source of all views and reports."""
