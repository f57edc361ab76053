"""Scheduling: sync policies, tile orders, splits and interleavings as small typed values, and schedules of them."""
