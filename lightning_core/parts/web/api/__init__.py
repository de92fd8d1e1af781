"""A pool as JSON over HTTP, for programs: versioned, and described by OpenAPI from the declarations that make it."""
