"""Terminal views: the live board, tables, the reasons of a job."""
