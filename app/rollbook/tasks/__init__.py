"""Tasks: what a rollout is to do, how it is prepared and scored, and the rollout that drives a program through it."""
