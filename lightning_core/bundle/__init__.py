"""Bundle files, read and checked; nothing is started here."""
