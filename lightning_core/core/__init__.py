"""The nouns that everything else speaks in: jobs, targets, events, answers, reasons, and the plugs. Pure."""
