"""What pages show, as HTML: no route, no request; each function returns a part of a page."""
