"""The library's own parts: features on top of the core, registered as parts of other packages are.

Each folder is one part, named by an entry point of the group ``lightning_core.parts``. The core imports none of them
and works without them; nor does a part import another one.
"""
