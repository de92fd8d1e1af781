"""HTML of the pages: no routes, no requests; each function returns a part of a page."""
