"""Fuzz targets: what comes from outside is read, or refused with its own error; a short one each, and a long one."""
