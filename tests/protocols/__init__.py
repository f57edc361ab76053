"""Small synchronisation protocols as models, every interleaving of which is looked at; see ``check``."""
