"""A journal read as series, one set a job: what views and reports are made from."""
