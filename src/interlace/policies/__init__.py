"""Scheduling choices: sync policies, tile orders, interleavings and dispatch. Each is a small typed value."""
