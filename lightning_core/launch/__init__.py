"""What stands between a bundle file and training processes: the loader, the Keeper, workers, turnstiles."""
