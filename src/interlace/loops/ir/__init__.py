"""IR nodes (statements, index expressions, values) and analyses of them: loop nests, bounds, lifetimes."""
