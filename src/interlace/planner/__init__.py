"""From a graph to a plan."""
