"""Tests, sorted by what they need; CONTRIBUTING.md says which tier a test belongs to."""
