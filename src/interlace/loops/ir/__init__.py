"""Statements, index expressions and values, and what is read off them: where statements stand, who lives where."""
