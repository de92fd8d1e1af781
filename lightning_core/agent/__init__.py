"""What runs in a training process beside its loop, whatever the loop: nothing here knows Lightning."""
