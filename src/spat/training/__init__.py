"""Training: the loop, its schedules, its checkpoints and its event sinks."""
