"""Rewrites of plain loops to pipelines that load ahead: circular buffers, barriers and thread predicates."""
