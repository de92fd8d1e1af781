"""What the papers on LARA and LaiRA print, and the page that holds it against what was measured."""
