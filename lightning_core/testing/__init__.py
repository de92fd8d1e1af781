"""The conformance suites: one for each family of parts that can be exchanged. They need no test framework."""
