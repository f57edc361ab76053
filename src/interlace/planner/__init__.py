"""Plan search: turn a graph into a plan, predict its cost and explain the choice."""
