"""What a rollout's model calls add up to: pure data."""
