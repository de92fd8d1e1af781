"""Jobs that are replayed under each spot policy, so that the selector learns which one to give."""
