"""Executors: ways to run a verified plan. Device executors import torch and triton when they are made."""
