"""The programs that play the agent."""
