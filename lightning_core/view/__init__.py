"""What people look at in a terminal: the live board, tables, the reasons of a job."""
