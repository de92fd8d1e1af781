"""The pool's web page: watch the jobs of a pool in a browser, and steer them."""
